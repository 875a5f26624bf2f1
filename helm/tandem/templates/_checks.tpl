{{/* What a schema cannot say. Each `fail` is one sentence that tells what to do. */}}
{{- define "tandem.checks" -}}
{{- $v := .Values -}}
{{- $vllm := eq (include "tandem.hasEngine" (dict "root" . "engines" (list "vllm"))) "true" -}}
{{- $shims := eq (include "tandem.hasEngine" (dict "root" . "engines" (list "reference" "vllm-shim"))) "true" -}}
{{- $own := $v.bringYourOwn -}}
{{- if and $shims (not $v.deploymentKey.existingSecret) -}}
{{- fail "deploymentKey.existingSecret must name a Secret, since engines with a shim know their routers by its key; make one with: kubectl create secret generic tandem-keys --from-literal=deployment-key=$(openssl rand -hex 32)" -}}
{{- end -}}
{{- if and $shims (ne (include "tandem.hasStore" .) "true") -}}
{{- fail "Engines with a shim need a store to be found in; set redis.enabled, redis.external.url or redis.external.existingSecret." -}}
{{- end -}}
{{- if and $v.redis.enabled (or $v.redis.external.url $v.redis.external.existingSecret) -}}
{{- fail "redis.enabled starts a store and redis.external names another one; set redis.enabled to false to use the latter." -}}
{{- end -}}
{{- if and $vllm $own.selector -}}
{{- fail "Pools of engine vllm and bringYourOwn.selector exclude each other, since routers watch one selector; list your own engines under bringYourOwn.engines, or give their pods the labels app.kubernetes.io/instance and tandem/engine of this release." -}}
{{- end -}}
{{- if not (or $vllm $shims $own.selector $own.engines (eq (include "tandem.hasStore" .) "true")) -}}
{{- fail "There are no engines; enable a pool, or set bringYourOwn.selector or bringYourOwn.engines." -}}
{{- end -}}
{{- if and (or $v.router.auth.apiKeys $v.router.auth.adminKey) (not $v.router.auth.existingSecret) -}}
{{- fail "router.auth.existingSecret must name the Secret with the keys api-keys and admin-key." -}}
{{- end -}}
{{- if and $v.router.ingress.enabled (not $v.router.ingress.host) -}}
{{- fail "router.ingress.host must name the host that the Ingress is for." -}}
{{- end -}}
{{- if and $v.router.httpRoute.enabled (not $v.router.httpRoute.parentRefs) -}}
{{- fail "router.httpRoute.parentRefs must name the Gateway that the HTTPRoute belongs to." -}}
{{- end -}}
{{- if and $v.router.autoscaling.enabled (gt (int $v.router.autoscaling.minReplicas) (int $v.router.autoscaling.maxReplicas)) -}}
{{- fail "router.autoscaling.minReplicas must not be above maxReplicas." -}}
{{- end -}}
{{- if lt (int $v.router.graceSeconds) (int (default 600 $v.router.config.total_s)) -}}
{{- fail (printf "router.graceSeconds is %v, so a restart would cut requests that may take router.config.total_s = %v seconds; raise the former or lower the latter." $v.router.graceSeconds (default 600 $v.router.config.total_s)) -}}
{{- end -}}
{{- range $name, $unused := $v.pools -}}
{{- $pool := include "tandem.pool" (dict "root" $ "name" $name) | fromYaml -}}
{{- if $pool.enabled -}}
{{- include "tandem.checkPool" (dict "root" $ "name" $name "pool" $pool) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkPool" -}}
{{- $v := .root.Values -}}
{{- $pool := .pool -}}
{{- $at := printf "pools.%s" .name -}}
{{- $p := $pool.parallel -}}
{{- $group := int $pool.groupSize -}}
{{- $idle := default 4 $v.router.config.engine_idle_s -}}
{{- if lt (int $pool.keepAliveSeconds) (int (add (ceil $idle) 5)) -}}
{{- fail (printf "%s.keepAliveSeconds is %v and must be at least 5 above router.config.engine_idle_s = %v, or the router sends requests into connections that the engine closes." $at $pool.keepAliveSeconds $idle) -}}
{{- end -}}
{{- if and (gt $group 1) (ne $pool.kind "LeaderWorkerSet") -}}
{{- fail (printf "%s.groupSize is %v, and an engine of several pods needs kind: LeaderWorkerSet." $at $group) -}}
{{- end -}}
{{- if and (ne $pool.engine "vllm") (or (gt (int $p.tp) 1) (gt (int $p.dp) 1) $p.ep (gt $group 1)) -}}
{{- fail (printf "%s: an engine with a shim is one worker without tp, dp, ep or groupSize; use engine: vllm." $at) -}}
{{- end -}}
{{- if and (eq $pool.engine "reference") $pool.args -}}
{{- fail (printf "%s.args are those of `vllm serve`; the reference engine takes shim." $at) -}}
{{- end -}}
{{- if and (ne $pool.engine "reference") (not $pool.image) -}}
{{- fail (printf "%s.image must name an image with vLLM and NIXL." $at) -}}
{{- end -}}
{{- if eq $pool.engine "vllm" -}}
{{- if $pool.shim -}}
{{- fail (printf "%s.shim is for engines with a shim; plain vLLM takes args." $at) -}}
{{- end -}}
{{- if and (gt (int $p.dp) 1) (not $p.ep) -}}
{{- fail (printf "%s: ranks of parallel.dp without parallel.ep share nothing; use replicas instead." $at) -}}
{{- end -}}
{{- if mod (int $p.dp) $group -}}
{{- fail (printf "%s: parallel.dp = %v cannot be divided among groupSize = %v pods." $at $p.dp $group) -}}
{{- end -}}
{{- end -}}
{{- if and $pool.efa.enabled (lt (int (include "tandem.efaCount" $pool)) 1) -}}
{{- fail (printf "%s.efa is enabled without devices; set efa.count, or gpusPerPod from which it follows." $at) -}}
{{- end -}}
{{- if and $pool.efa.enabled (ne $pool.kv.backend "LIBFABRIC") -}}
{{- fail (printf "%s.efa is enabled, so kv.backend must be LIBFABRIC: UCX on EFA has no GPUDirect." $at) -}}
{{- end -}}
{{- if and $pool.hugepages2Mi (not (dig "limits" "memory" "" $pool.resources)) -}}
{{- fail (printf "%s.hugepages2Mi needs resources.limits.memory beside it." $at) -}}
{{- end -}}
{{- if and $pool.placement.placementGroup.name (not $pool.placement.placementGroup.label) -}}
{{- fail (printf "%s.placement.placementGroup.label must say which node label holds the group's name." $at) -}}
{{- end -}}
{{- if and $pool.autoscaling.enabled (gt (int $pool.autoscaling.minReplicas) (int $pool.autoscaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling.minReplicas must not be above maxReplicas." $at) -}}
{{- end -}}
{{- end -}}
