{{- define "tandem.routerLabels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/component: router
{{- end -}}

{{/* The router's settings file: what the chart decides, over what the values say. */}}
{{- define "tandem.routerConfig" -}}
{{- $v := .Values -}}
{{- $made := dict "host" "0.0.0.0" "port" 8000 "pre_stop_s" $v.router.preStopSeconds "grace_s" $v.router.graceSeconds -}}
{{- with include "tandem.podSelector" . }}{{ $_ := set $made "kubernetes_selector" . }}{{ $_ := set $made "kubernetes_namespace" (include "tandem.podNamespace" $) }}{{ end -}}
{{- if $v.bringYourOwn.engines }}{{ $_ := set $made "fleet_file" "/etc/tandem/config/fleet.yaml" }}{{ end -}}
{{- if $v.router.auth.apiKeys }}{{ $_ := set $made "api_key_file" "/etc/tandem/auth/api-keys" }}{{ end -}}
{{- if $v.router.tls.existingSecret }}{{ $_ := set $made "tls_cert" "/etc/tandem/tls/tls.crt" }}{{ $_ := set $made "tls_key" "/etc/tandem/tls/tls.key" }}{{ end -}}
{{ mergeOverwrite (deepCopy $v.router.config) $made | toYaml }}
{{- end -}}

{{- define "tandem.routerFiles" -}}
router.yaml: |
  {{- include "tandem.routerConfig" . | nindent 2 }}
{{- with .Values.bringYourOwn.engines }}
fleet.yaml: |
  {{- dict "engines" . | toYaml | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tandem.routerEnv" -}}
{{- $v := .Values.router -}}
# As variables, so that `tandem doctor` and `tandem story` in this pod find the store as well.
- {name: TANDEM_NAMESPACE, value: {{ include "tandem.keyPrefix" . }}}
{{- include "tandem.storeEnv" (dict "root" . "name" "TANDEM_STORE") }}
{{- include "tandem.deploymentKeyEnv" . }}
{{- if $v.auth.adminKey }}
- name: TANDEM_ADMIN_KEY
  valueFrom: {secretKeyRef: {name: {{ $v.auth.existingSecret }}, key: admin-key}}
{{- end }}
{{- if $v.engineKey.existingSecret }}
- name: TANDEM_ENGINE_KEY
  valueFrom: {secretKeyRef: {name: {{ $v.engineKey.existingSecret }}, key: engine-key}}
{{- end }}
{{- with $v.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
