{{/* A pool with its defaults, as YAML. */}}
{{- define "tandem.pool" -}}
{{- $own := default dict (get .root.Values.pools .name) -}}
{{ mergeOverwrite (deepCopy .root.Values.poolDefaults) (deepCopy $own) | toYaml }}
{{- end -}}

{{/* "true" when an enabled pool has one of these engines. */}}
{{- define "tandem.hasEngine" -}}
{{- $found := false -}}
{{- range $name, $unused := .root.Values.pools -}}
{{- $pool := include "tandem.pool" (dict "root" $.root "name" $name) | fromYaml -}}
{{- if and $pool.enabled (has $pool.engine $.engines) -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{ $found }}
{{- end -}}

{{/* GPUs of one pod. */}}
{{- define "tandem.gpus" -}}
{{- if not (kindIs "invalid" .gpusPerPod) -}}
{{ int .gpusPerPod }}
{{- else if ne .engine "reference" -}}
{{ div (mul (int .parallel.tp) (int .parallel.dp)) (int .groupSize) }}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* EFA devices of one pod. */}}
{{- define "tandem.efaCount" -}}
{{- if not .efa.enabled -}}
0
{{- else if not (kindIs "invalid" .efa.count) -}}
{{ int .efa.count }}
{{- else -}}
{{ mul (int .efa.perGpu) (int (include "tandem.gpus" .)) }}
{{- end -}}
{{- end -}}

{{/* Data-parallel ranks of one pod: plain vLLM has a server for each. */}}
{{- define "tandem.localRanks" -}}
{{- if eq .engine "vllm" -}}
{{ div (int .parallel.dp) (int .groupSize) }}
{{- else -}}
1
{{- end -}}
{{- end -}}

{{/* Ports of the servers in one pod, separated by commas. */}}
{{- define "tandem.ports" -}}
{{- $ports := list -}}
{{- range $rank := until (int (include "tandem.localRanks" .)) -}}
{{- $ports = append $ports (toString (add 8000 $rank)) -}}
{{- end -}}
{{ join "," $ports }}
{{- end -}}

{{/* Seconds between the order to end and the kill: what preStop, drain and the process's own end may take. */}}
{{- define "tandem.poolGrace" -}}
{{- if eq .engine "vllm" -}}
{{ add (int .settleSeconds) (int .drainSeconds) 30 }}
{{- else -}}
{{ add (int .drainSeconds) 15 }}
{{- end -}}
{{- end -}}

{{- define "tandem.poolLabels" -}}
{{ include "tandem.selector" .root }}
app.kubernetes.io/component: engine
tandem/pool: {{ .name }}
{{- end -}}
