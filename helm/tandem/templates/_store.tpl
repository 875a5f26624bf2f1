{{- define "tandem.hasStore" -}}
{{ or .Values.redis.enabled (ne .Values.redis.external.url "") (ne .Values.redis.external.existingSecret "") }}
{{- end -}}

{{/* The store's URL as environment variable `name`. Kubernetes puts the password into it. */}}
{{- define "tandem.storeEnv" -}}
{{- $root := .root -}}
{{- $redis := $root.Values.redis -}}
{{- if $redis.enabled }}
{{- $host := printf "%s-redis:6379/0" (include "tandem.fullname" $root) }}
{{- if $redis.existingSecret }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $redis.existingSecret }}, key: redis-password}}
- name: {{ .name }}
  value: redis://:$(REDIS_PASSWORD)@{{ $host }}
{{- else }}
- name: {{ .name }}
  value: redis://{{ $host }}
{{- end }}
{{- else if $redis.external.existingSecret }}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ $redis.external.existingSecret }}, key: url}}
{{- else if $redis.external.url }}
- name: {{ .name }}
  {{- $url := $redis.external.url }}
  {{- if $redis.external.caSecret }}
  {{- $url = printf "%s%sssl_ca_certs=/etc/tandem/store-ca/ca.crt" $url (ternary "&" "?" (contains "?" $url)) }}
  {{- end }}
  value: {{ $url | quote }}
{{- end }}
{{- end -}}

{{- define "tandem.deploymentKeyEnv" -}}
{{- with .Values.deploymentKey }}
{{- if .existingSecret }}
- name: TANDEM_DEPLOYMENT_KEY
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end -}}
