{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a release; a component's own label comes beside it. */}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tandem.image" -}}
{{ printf "%s:%s" .name (default .root.Chart.AppVersion .root.Values.image.tag) }}
{{- end -}}

{{- define "tandem.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "tandem.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Which pods are engines without a shim: "" where nobody has to be found. */}}
{{- define "tandem.podSelector" -}}
{{- if eq (include "tandem.hasEngine" (dict "root" . "engines" (list "vllm"))) "true" -}}
app.kubernetes.io/instance={{ .Release.Name }},tandem/engine=vllm
{{- else -}}
{{ .Values.bringYourOwn.selector }}
{{- end -}}
{{- end -}}

{{- define "tandem.podNamespace" -}}
{{ default .Release.Namespace .Values.bringYourOwn.namespace }}
{{- end -}}

{{/* The prefix of all keys in the store: releases may share one. */}}
{{- define "tandem.keyPrefix" -}}
{{ printf "%s-%s" .Release.Namespace (include "tandem.fullname" .) }}
{{- end -}}
