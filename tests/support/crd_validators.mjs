// Objects from standard input, each asked of the validator that its project's own CRD was made into.
import { readFileSync } from "node:fs";

const PACKAGES = {
  "gateway.networking.k8s.io": "gateway-api",
  "karpenter.k8s.aws": "karpenter",
  "karpenter.sh": "karpenter",
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
};

async function fault(one) {
  const [group, version] = one.apiVersion.split("/");
  const models = await import(`@kubernetes-models/${PACKAGES[group]}/${group}/${version}/${one.kind}`);
  try {
    new models[one.kind](one).validate();
    return null;
  } catch (error) {
    return `${one.kind} ${one.metadata.name}: ${error.message}`;
  }
}

const asked = JSON.parse(readFileSync(0, "utf8")).filter((one) => one.apiVersion.split("/")[0] in PACKAGES);
const faults = (await Promise.all(asked.map(fault))).filter(Boolean);
for (const one of faults) console.log(one);
const broken = structuredClone(asked.find((one) => one.kind === "ScaledObject"));
broken.spec.maxReplicaCount = "many";
if (!(await fault(broken))) faults.push("a ScaledObject that is wrong was accepted");
console.log(`${asked.length} objects asked about, ${faults.length} refused`);
process.exit(faults.length ? 1 : 0);
