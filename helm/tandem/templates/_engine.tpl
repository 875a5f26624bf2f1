{{/* Requests and limits, with what only limits may name repeated in both. */}}
{{- define "tandem.engineResources" -}}
{{- $devices := dict -}}
{{- $gpus := int (include "tandem.gpus" .) -}}
{{- if $gpus }}{{ $_ := set $devices "nvidia.com/gpu" $gpus }}{{ end -}}
{{- $efa := int (include "tandem.efaCount" .) -}}
{{- if $efa }}{{ $_ := set $devices .efa.resource $efa }}{{ end -}}
{{- if .hugepages2Mi }}{{ $_ := set $devices "hugepages-2Mi" .hugepages2Mi }}{{ end -}}
requests:
  {{- toYaml (merge (deepCopy $devices) (default dict .resources.requests)) | nindent 2 }}
limits:
  {{- toYaml (merge (deepCopy $devices) (default dict .resources.limits)) | nindent 2 }}
{{- end -}}

{{- define "tandem.engineSecurity" -}}
{{- if .privileged -}}
privileged: true
runAsUser: 0
{{- else -}}
allowPrivilegeEscalation: false
seccompProfile: {type: RuntimeDefault}
{{- if .efa.enabled }}
# Locked memory: Kubernetes gives added capabilities to root alone.
runAsUser: 0
capabilities: {drop: [ALL], add: [IPC_LOCK]}
{{- else if eq .engine "reference" }}
runAsNonRoot: true
runAsUser: 65532
capabilities: {drop: [ALL]}
{{- else }}
capabilities: {drop: [ALL]}
{{- end }}
{{- if eq .engine "reference" }}
readOnlyRootFilesystem: true
{{- end }}
{{- end -}}
{{- end -}}

{{- define "tandem.efaEnv" -}}
{{- if .efa.enabled }}
{{- range $name, $text := .efa.env }}
- {name: {{ $name }}, value: {{ $text | quote }}}
{{- end }}
{{- if .efa.libraryPath }}
- {name: LD_LIBRARY_PATH, value: {{ .efa.libraryPath | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings of our shim. The address that others call is the pod's own. */}}
{{- define "tandem.shimEnv" -}}
{{- $pool := .pool -}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: TANDEM_SHIM_INSTANCE_ID, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: TANDEM_SHIM_ADVERTISE_HOST, value: $(POD_IP)}
- {name: TANDEM_SHIM_HOST, value: 0.0.0.0}
- {name: TANDEM_SHIM_PORT, value: "8000"}
- {name: TANDEM_SHIM_ROLE, value: {{ $pool.role }}}
- {name: TANDEM_SHIM_ENGINE, value: {{ trimSuffix "-shim" $pool.engine }}}
{{- if eq $pool.engine "reference" }}
- {name: TANDEM_SHIM_MODEL, value: {{ $pool.model | quote }}}
{{- if $pool.servedModel }}
- {name: TANDEM_SHIM_MODEL_NAME, value: {{ $pool.servedModel | quote }}}
{{- end }}
{{- end }}
- {name: TANDEM_SHIM_NAMESPACE, value: {{ include "tandem.keyPrefix" .root }}}
- {name: TANDEM_SHIM_NIXL_BACKEND, value: {{ $pool.kv.backend }}}
- {name: TANDEM_SHIM_KEEP_ALIVE_S, value: {{ $pool.keepAliveSeconds | quote }}}
- {name: TANDEM_SHIM_DRAIN_FOR_S, value: {{ $pool.drainSeconds | quote }}}
{{- range $name, $value := $pool.shim }}
- {name: TANDEM_SHIM_{{ $name | upper }}, value: {{ include "tandem.text" $value | quote }}}
{{- end }}
{{- include "tandem.storeEnv" (dict "root" .root "name" "TANDEM_SHIM_STORE") }}
{{- include "tandem.deploymentKeyEnv" .root }}
- {name: HOME, value: /tmp}
{{- end -}}

{{/* A value of the values file as text; whole numbers without exponent. */}}
{{- define "tandem.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- define "tandem.vllmEnv" -}}
- {name: VLLM_NIXL_SIDE_CHANNEL_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: {{ .kv.sideChannelPort | quote }}}
- {name: VLLM_HTTP_TIMEOUT_KEEP_ALIVE, value: {{ .keepAliveSeconds | quote }}}
# Equal block hashes on all engines.
- {name: PYTHONHASHSEED, value: "0"}
{{- end -}}

{{/* Arguments of `vllm serve`; behind a shim, the shim says address, connector and end. */}}
{{- define "tandem.vllmArgs" -}}
{{- $roles := dict "prefill" "kv_producer" "decode" "kv_consumer" "both" "kv_both" -}}
{{- $connector := ternary "NixlPushConnector" "NixlConnector" (eq .kv.connector "push") -}}
{{- $extra := dict "backends" (list .kv.backend) "kv_lease_duration" (int .kv.leaseSeconds) -}}
{{- $plain := eq .engine "vllm" -}}
{{- $transfer := dict "kv_connector" $connector "kv_role" (get $roles .role) "kv_buffer_device" "cuda" "kv_connector_extra_config" $extra -}}
- {{ .model | quote }}
{{- if $plain }}
- --port=8000
{{- end }}
{{- if .servedModel }}
- --served-model-name={{ .servedModel }}
{{- end }}
{{- if gt (int .parallel.tp) 1 }}
- --tensor-parallel-size={{ int .parallel.tp }}
{{- end }}
{{- if gt (int .parallel.dp) 1 }}
- --data-parallel-size={{ int .parallel.dp }}
- --data-parallel-size-local={{ include "tandem.localRanks" . }}
- --data-parallel-rpc-port=13345
{{- if gt (int (include "tandem.localRanks" .)) 1 }}
- --data-parallel-multi-port-external-lb
- --data-parallel-supervisor-port=8999
{{- else }}
- --data-parallel-external-lb
{{- end }}
{{- end }}
{{- if .parallel.ep }}
- --enable-expert-parallel
{{- end }}
{{- if $plain }}
- --kv-transfer-config={{ $transfer | toJson }}
- --shutdown-timeout=10
{{- end }}
{{- range .args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "tandem.engineCommand" -}}
{{- if eq .engine "reference" -}}
command: [tandem, shim]
{{- else if eq .engine "vllm-shim" -}}
command: [tandem, shim]
args:
  - --
  {{- include "tandem.vllmArgs" . | nindent 2 }}
{{- else if gt (int .groupSize) 1 -}}
{{- $local := int (include "tandem.localRanks" .) -}}
command:
  - /bin/sh
  - -c
  {{- if gt $local 1 }}
  - exec vllm serve "$@" "--data-parallel-address=$LWS_LEADER_ADDRESS" "--data-parallel-start-rank=$((LWS_WORKER_INDEX * {{ $local }}))"
  {{- else }}
  - exec vllm serve "$@" "--data-parallel-address=$LWS_LEADER_ADDRESS" "--data-parallel-rank=$LWS_WORKER_INDEX"
  {{- end }}
  - vllm
args:
  {{- include "tandem.vllmArgs" . | nindent 2 }}
{{- else -}}
command: [vllm, serve]
args:
  {{- include "tandem.vllmArgs" . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Loading may take startupMinutes; until then nobody asks whether it lives. */}}
{{- define "tandem.engineProbes" -}}
{{- $ranks := int (include "tandem.localRanks" .) -}}
{{- $ready := dict "path" "/readyz" "port" "http" -}}
{{- $live := dict "path" "/healthz" "port" "http" -}}
{{- if eq .engine "vllm" -}}
{{- $port := ternary "supervisor" "http" (gt $ranks 1) -}}
{{- $ready = dict "path" (ternary "/health" "/v1/models" (gt $ranks 1)) "port" $port -}}
{{- $live = dict "path" "/health" "port" $port -}}
{{- end -}}
startupProbe:
  httpGet: {{ $ready | toJson }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ mul (int .startupMinutes) 12 }}
readinessProbe:
  httpGet: {{ $ready | toJson }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  httpGet: {{ $live | toJson }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "tandem.engineAffinity" -}}
{{- $pool := .pool -}}
{{- $place := $pool.placement -}}
{{- $engines := dict "matchLabels" (include "tandem.selector" .root | fromYaml | merge (dict "app.kubernetes.io/component" "engine")) -}}
{{- $nodes := list -}}
{{- if $place.zones }}{{ $nodes = append $nodes (dict "key" "topology.kubernetes.io/zone" "operator" "In" "values" $place.zones) }}{{ end -}}
{{- if $place.placementGroup.name }}{{ $nodes = append $nodes (dict "key" $place.placementGroup.label "operator" "In" "values" (list $place.placementGroup.name)) }}{{ end -}}
{{- $made := dict -}}
{{- if $nodes }}{{ $_ := set $made "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" (list (dict "matchExpressions" $nodes)))) }}{{ end -}}
{{- range $kind, $pair := dict "podAffinity" (list $place.sameZone "topology.kubernetes.io/zone") "podAntiAffinity" (list $place.separateHosts "kubernetes.io/hostname") -}}
{{- $how := index $pair 0 -}}
{{- $term := dict "labelSelector" $engines "topologyKey" (index $pair 1) -}}
{{- if eq $how "required" }}{{ $_ := set $made $kind (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) }}{{ end -}}
{{- if eq $how "preferred" }}{{ $_ := set $made $kind (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) }}{{ end -}}
{{- end -}}
{{- mergeOverwrite $made (deepCopy $pool.affinity) | toYaml -}}
{{- end -}}
