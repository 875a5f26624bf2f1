{{/*
What scales a pool. Prefill: prompt tokens that wait, per replica; a shim counts uncached ones, of plain vLLM they are
estimated from waiting requests and the mean prompt. Decode: the fullest engine's KV cache, and TPOT.
`> 0 or vector(0)`: without traffic a quantile is no number.
*/}}
{{- define "tandem.triggers" -}}
{{- $scale := .pool.autoscaling -}}
{{- $here := printf "namespace=%q,service=%q" .root.Release.Namespace (printf "%s-%s" (include "tandem.fullname" .root) .name) -}}
{{- $routers := printf "namespace=%q,service=%q" .root.Release.Namespace (printf "%s-router" (include "tandem.fullname" .root)) -}}
{{- $shim := ne .pool.engine "vllm" -}}
{{- if ne .pool.role "decode" }}
- type: prometheus
  metricType: AverageValue
  metadata:
    serverAddress: {{ $scale.prometheus }}
    threshold: {{ $scale.queuedTokens | quote }}
    {{- if $shim }}
    query: sum(tandem_shim_queued_prompt_tokens{{ "{" }}{{ $here }}{{ "}" }}) or vector(0)
    {{- else }}
    query: >-
      (sum(vllm:num_requests_waiting{{ "{" }}{{ $here }}{{ "}" }})
      * sum(rate(vllm:prompt_tokens_total{{ "{" }}{{ $here }}{{ "}" }}[5m]))
      / sum(rate(vllm:request_success_total{{ "{" }}{{ $here }}{{ "}" }}[5m])) > 0) or vector(0)
    {{- end }}
{{- end }}
{{- if ne .pool.role "prefill" }}
- type: prometheus
  metricType: Value
  metadata:
    serverAddress: {{ $scale.prometheus }}
    threshold: {{ $scale.kvUse | quote }}
    {{- if $shim }}
    query: >-
      max(1 - tandem_shim_free_blocks{{ "{" }}{{ $here }}{{ "}" }}
      / tandem_shim_total_blocks{{ "{" }}{{ $here }}{{ "}" }}) or vector(0)
    {{- else }}
    query: max(vllm:kv_cache_usage_perc{{ "{" }}{{ $here }}{{ "}" }}) or vector(0)
    {{- end }}
- type: prometheus
  metricType: Value
  metadata:
    serverAddress: {{ $scale.prometheus }}
    threshold: {{ $scale.tpotSeconds | quote }}
    query: >-
      (histogram_quantile(0.9, sum by (le) (rate(tandem_tpot_seconds_bucket{{ "{" }}{{ $routers }}{{ "}" }}[2m])))
      > 0) or vector(0)
{{- end }}
{{- end -}}
