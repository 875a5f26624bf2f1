{{/* The pod template of a pool: dict root, name, pool. */}}
{{- define "tandem.enginePod" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $shim := ne $pool.engine "vllm" -}}
{{- $ranks := int (include "tandem.localRanks" $pool) -}}
metadata:
  labels:
    {{- include "tandem.poolLabels" . | nindent 4 }}
    tandem/role: {{ $pool.role }}
    tandem/engine: {{ $pool.engine }}
    {{- with $pool.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- if or (not $shim) $pool.podAnnotations }}
  annotations:
    {{- if not $shim }}
    tandem/contract: vllm
    tandem/ports: {{ include "tandem.ports" $pool | quote }}
    {{- end }}
    {{- with $pool.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "tandem.poolGrace" $pool }}
  {{- include "tandem.pullSecrets" $root | nindent 2 }}
  {{- with $pool.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $pool.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $pool.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "tandem.engineAffinity" . | fromYaml }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $pool.efa.enabled $pool.efa.preflight }}
  initContainers:
    - name: preflight
      image: {{ include "tandem.image" (dict "root" $root "name" $root.Values.image.shim) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [tandem, doctor, --preflight, --expect-efa, {{ include "tandem.efaCount" $pool | quote }}]
      env:
        - {name: HOME, value: /tmp}
        {{- include "tandem.efaEnv" $pool | nindent 8 }}
      securityContext: {{ include "tandem.engineSecurity" $pool | nindent 8 }}
      resources: {{ include "tandem.engineResources" $pool | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    - name: engine
      image: {{ if $pool.image }}{{ $pool.image }}{{ else }}{{ include "tandem.image" (dict "root" $root "name" $root.Values.image.shim) }}{{ end }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- include "tandem.engineCommand" $pool | nindent 6 }}
      env:
        {{- if $shim }}
        {{- include "tandem.shimEnv" . | nindent 8 }}
        {{- else }}
        {{- include "tandem.vllmEnv" $pool | nindent 8 }}
        {{- end }}
        {{- include "tandem.efaEnv" $pool | nindent 8 }}
        {{- with $pool.env }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with $pool.envFrom }}
      envFrom: {{ toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: 8000}
        {{- range $rank := until $ranks }}
        {{- if $rank }}
        - {name: http-{{ $rank }}, containerPort: {{ add 8000 $rank }}}
        {{- end }}
        {{- end }}
        {{- if gt $ranks 1 }}
        - {name: supervisor, containerPort: 8999}
        {{- end }}
        {{- if not $shim }}
        - {name: side-channel, containerPort: {{ int $pool.kv.sideChannelPort }}}
        {{- end }}
      {{- include "tandem.engineProbes" $pool | nindent 6 }}
      {{- if not $shim }}
      # The routers have seen the pod go, running requests have ended, and nobody reads its KV cache any more.
      lifecycle:
        preStop:
          exec:
            command: [python3, /etc/tandem/drain/drain_vllm.py, --ports, {{ include "tandem.ports" $pool | quote }}, --settle-s, {{ $pool.settleSeconds | quote }}, --drain-s, {{ $pool.drainSeconds | quote }}]
      {{- end }}
      securityContext: {{ include "tandem.engineSecurity" $pool | nindent 8 }}
      resources: {{ include "tandem.engineResources" $pool | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $pool.shm }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- if not $shim }}
        - {name: drain, mountPath: /etc/tandem/drain, readOnly: true}
        {{- end }}
        {{- if and $shim $root.Values.redis.external.caSecret }}
        - {name: store-ca, mountPath: /etc/tandem/store-ca, readOnly: true}
        {{- end }}
        {{- with $pool.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- if $pool.shm }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $pool.shm }}}
    {{- end }}
    {{- if not $shim }}
    - name: drain
      configMap: {name: {{ include "tandem.fullname" $root }}-drain}
    {{- end }}
    {{- if and $shim $root.Values.redis.external.caSecret }}
    - name: store-ca
      secret: {secretName: {{ $root.Values.redis.external.caSecret }}}
    {{- end }}
    {{- with $pool.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
