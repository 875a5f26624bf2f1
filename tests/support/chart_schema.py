"""The schema of the chart's values: every value has a type, settings of router and shim are those that there are.

Nothing but the settings' own declarations says what `router.config` and `pools.*.shim` may hold, so the chart cannot
fall behind the command line. `make chart` writes the schema, a test compares.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from engine_shim.settings import ShimSettings
from router.contract.instance import Role
from router.core.policy_table import POLICY_NAMES
from router.discovery.entry import Contract
from router.schemas import fleet_schema, settings_schema
from router.settings import MODES, PRIORITY_SOURCES, SECRETS

Schema = dict[str, Any]

OF_THE_CHART = {
    "host",
    "port",
    "store",
    "namespace",
    "pre_stop_s",
    "grace_s",
    "fleet_file",
    "kubernetes_selector",
    "kubernetes_namespace",
    "kubernetes_api",
    "kubernetes_account",
    "api_key_file",
    "tls_cert",
    "tls_key",
    *SECRETS,
}
"""Settings of the router that follow from other values."""
SHIM_OF_THE_CHART = {
    "role",
    "engine",
    "engine_args",
    "host",
    "port",
    "advertise_host",
    "store",
    "namespace",
    "deployment_key",
    "instance_id",
    "model",
    "model_name",
    "nixl_backend",
    "keep_alive_s",
    "drain_for_s",
}
CHOICES = {
    "mode": MODES,
    "prefill_policy": POLICY_NAMES,
    "decode_policy": POLICY_NAMES,
    "priority_from": PRIORITY_SOURCES,
}

STRING: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
MAP: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
ANY_MAP: Schema = {"type": "object"}
"""A fragment of a Kubernetes object; what it holds, the API server says."""
ANY_LIST: Schema = {"type": "array", "items": {"type": "object"}}
STRINGS: Schema = {"type": "array", "items": STRING}
QUANTITY: Schema = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?)?$"}
SHARE_OR_COUNT: Schema = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
URL: Schema = {"type": "string", "pattern": "^https?://"}
STORE_URL: Schema = {"type": "string", "pattern": r"^((redis|rediss)(\+(sentinel|cluster))?://.*)?$"}
LABEL: Schema = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?$"}


def whole(least: int = 0, *, empty: bool = False) -> Schema:
    return {"type": ["integer", "null"] if empty else "integer", "minimum": least}


def number(least: float = 0) -> Schema:
    return {"type": "number", "minimum": least}


def one_of(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def table(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


RESOURCES = table(
    requests={"type": "object"}, limits={"type": "object"}
)  # quantities may be numbers, and names are open
PDB = table(enabled=FLAG, maxUnavailable=SHARE_OR_COUNT)


def router_config() -> Schema:
    """Settings of the router that values may set."""
    properties = {name: one for name, one in settings_schema()["properties"].items() if name not in OF_THE_CHART}
    for name, choices in CHOICES.items():
        properties[name]["enum"] = list(choices)
    for one in properties.values():
        if one["type"] in ("integer", "number"):
            one["minimum"] = 0
    return table(**properties)


def shim_settings() -> Schema:
    """Settings of the shim that values may set."""
    kinds = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
    properties = {}
    for one in fields(ShimSettings):
        if one.name in SHIM_OF_THE_CHART:
            continue
        properties[one.name] = {"type": kinds[str(one.type)], "description": one.metadata["about"]}
        if one.metadata["choices"]:
            properties[one.name]["enum"] = list(one.metadata["choices"])
    return table(**properties)


def pool() -> Schema:
    """One pool; all of it may be left out."""
    return table(
        enabled=FLAG,
        role=one_of(*(role.value for role in Role)),
        engine=one_of("reference", "vllm-shim", "vllm"),
        image=STRING,
        replicas=whole(),
        kind=one_of("Deployment", "LeaderWorkerSet"),
        groupSize=whole(1),
        model={"type": "string", "minLength": 1},
        servedModel=STRING,
        shim=shim_settings(),
        args=STRINGS,
        parallel=table(tp=whole(1), dp=whole(1), ep=FLAG),
        gpusPerPod=whole(empty=True),
        kv=table(
            connector=one_of("push", "pull"),
            backend=one_of("UCX", "LIBFABRIC"),
            leaseSeconds=whole(1),
            sideChannelPort=PORT,
        ),
        keepAliveSeconds=whole(1),
        drainSeconds=whole(1),
        settleSeconds=whole(),
        startupMinutes=whole(1),
        efa=table(
            enabled=FLAG,
            perGpu=whole(1),
            count=whole(1, empty=True),
            resource=STRING,
            libraryPath=STRING,
            preflight=FLAG,
            env=MAP,
        ),
        hugepages2Mi=QUANTITY,
        shm=QUANTITY,
        privileged=FLAG,
        placement=table(
            zones=STRINGS,
            sameZone=one_of("required", "preferred", ""),
            separateHosts=one_of("required", "preferred", ""),
            placementGroup=table(label=STRING, name=STRING),
        ),
        autoscaling=table(
            enabled=FLAG,
            minReplicas=whole(1),
            maxReplicas=whole(1),
            queuedTokens=whole(1),
            kvUse={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            tpotSeconds={"type": "number", "exclusiveMinimum": 0},
            prometheus=URL,
        ),
        pdb=PDB,
        rollout=table(maxSurge=SHARE_OR_COUNT, maxUnavailable=SHARE_OR_COUNT),
        resources=RESOURCES,
        env=ANY_LIST,
        envFrom=ANY_LIST,
        **_of_pods(),
        runtimeClassName=STRING,
        priorityClassName=STRING,
    )


def _of_pods() -> dict[str, Schema]:
    return {
        "extraVolumes": ANY_LIST,
        "extraVolumeMounts": ANY_LIST,
        "podAnnotations": MAP,
        "podLabels": MAP,
        "nodeSelector": MAP,
        "tolerations": ANY_LIST,
        "affinity": ANY_MAP,
    }


def _router() -> Schema:
    return table(
        replicas=whole(),
        config=router_config(),
        restartOnChange=FLAG,
        preStopSeconds=whole(),
        graceSeconds=whole(1),
        resources=RESOURCES,
        auth=table(existingSecret=STRING, apiKeys=FLAG, adminKey=FLAG),
        tls=table(existingSecret=STRING),
        engineKey=table(existingSecret=STRING),
        service=table(type=one_of("ClusterIP", "NodePort", "LoadBalancer"), port=PORT, annotations=MAP),
        ingress=table(enabled=FLAG, className=STRING, host=STRING, path=STRING, tlsSecret=STRING, annotations=MAP),
        httpRoute=table(enabled=FLAG, parentRefs=ANY_LIST, hostnames=STRINGS, timeoutSeconds=whole(1)),
        autoscaling=table(
            enabled=FLAG,
            minReplicas=whole(1),
            maxReplicas=whole(1),
            cpuPercent=whole(1),
            scaleDownWindowSeconds=whole(),
        ),
        pdb=PDB,
        spreadZones=FLAG,
        extraEnv=ANY_LIST,
        **_of_pods(),
        priorityClassName=STRING,
    )


def values_schema() -> Schema:
    """All of it, in the dialect that every Helm reads."""
    entry = fleet_schema()["$defs"]
    entry["Contract"] = one_of(*(contract.value for contract in Contract))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Tandem chart",
        "$defs": {"pool": pool(), **entry},
        **table(
            nameOverride=STRING,
            fullnameOverride=STRING,
            image=table(
                router=STRING,
                shim=STRING,
                tag=STRING,
                pullPolicy=one_of("Always", "IfNotPresent", "Never"),
                pullSecrets=STRINGS,
            ),
            deploymentKey=table(existingSecret=STRING, key=STRING),
            router=_router(),
            redis=table(
                enabled=FLAG,
                image=STRING,
                maxMemory=STRING,
                existingSecret=STRING,
                resources=RESOURCES,
                nodeSelector=MAP,
                tolerations=ANY_LIST,
                external=table(url=STORE_URL, existingSecret=STRING, caSecret=STRING),
            ),
            poolDefaults={"$ref": "#/$defs/pool"},
            pools={
                "type": "object",
                "propertyNames": LABEL,
                "additionalProperties": {"$ref": "#/$defs/pool"},
            },
            bringYourOwn=table(
                selector=STRING, namespace=STRING, engines={"type": "array", "items": {"$ref": "#/$defs/Entry"}}
            ),
            serviceAccount=table(create=FLAG, name=STRING, annotations=MAP),
            networkPolicy=table(enabled=FLAG, clients=ANY_LIST, metrics=ANY_LIST),
            monitoring=table(
                serviceMonitor=table(enabled=FLAG, labels=MAP, interval={"type": "string", "pattern": "^[0-9]+(s|m)$"}),
                prometheusRule=table(enabled=FLAG, labels=MAP),
                dashboards=table(enabled=FLAG, label=STRING, labelValue=STRING, annotations=MAP),
                slo=table(ttftSeconds=number(), tpotSeconds=number()),
            ),
            test=table(model=STRING, apiKeySecret=STRING, apiKeyKey=STRING, timeoutSeconds=whole(1)),
            **{"global": ANY_MAP},
        ),
    }
