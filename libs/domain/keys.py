"""Names that Drystone reads from and writes to Kubernetes objects: one place, so that no typo splits the system."""

from typing import Final

GROUP: Final = "drystone.dev"
API_VERSION: Final = "drystone.dev/v1alpha1"
SCHEDULER_NAME: Final = "drystone"
SYSTEM_NAMESPACE: Final = "drystone-system"

# Asked by the user, on a pod.
JOB: Final = "drystone.dev/job"
GANG_MIN: Final = "drystone.dev/gang-min"
QUEUE: Final = "drystone.dev/queue"
GPU_FRACTION: Final = "drystone.dev/gpu-fraction"  # "0.5": half of one device
GPU_MEMORY: Final = "drystone.dev/gpu-memory"  # "8192" or "8Gi": MiB of one device
GPU_MODELS: Final = "drystone.dev/gpu-models"  # "A100,H100": any of these
PREEMPTIBLE: Final = "drystone.dev/preemptible"  # "false": never evicted
EXPECTED: Final = "drystone.dev/expected-seconds"  # how long a task will run
CHECKPOINT: Final = "drystone.dev/checkpoint-seconds"  # between two checkpoints
CHECKPOINT_AT: Final = "drystone.dev/checkpoint-at"  # it saved its work then: RFC 3339, or Unix seconds
EVICT_NOTICE: Final = "drystone.dev/evict-notice-seconds"  # told so long before it is evicted
EVICT_ACK: Final = "drystone.dev/evict-ack"  # any word: it has saved what it needs, and may go at once
PRECISION: Final = "drystone.dev/precision"  # fp32 | tf32 | bf16 | fp16 | fp8 | int8 | mixed
PRECISION_REQUIRED: Final = "drystone.dev/precision-required"  # "true": only devices that support it
# Levels by name ("zone", "rack", "nvlink", "host") or by the key of a node label.
TOPOLOGY_REQUIRED: Final = "drystone.dev/topology-required"
TOPOLOGY_PREFERRED: Final = "drystone.dev/topology-preferred"
JOB_TOPOLOGY_REQUIRED: Final = "drystone.dev/job-topology-required"  # of all pods of the job, not only of its likes
JOB_TOPOLOGY_PREFERRED: Final = "drystone.dev/job-topology-preferred"
GROUP_TOPOLOGY_REQUIRED: Final = "drystone.dev/group-topology-required"  # of each group of consecutive indices
GROUP_TOPOLOGY_PREFERRED: Final = "drystone.dev/group-topology-preferred"
GROUP_SIZE: Final = "drystone.dev/group-size"
PRIORITY_LABEL: Final = "priority"  # low | normal | high
GPU_RESOURCE: Final = "nvidia.com/gpu"

# Read from a node (GPU feature discovery and ours).
NODE_GPU_MODEL: Final = "nvidia.com/gpu.product"
NODE_GPU_MEMORY: Final = "nvidia.com/gpu.memory"  # MiB of one device
NVLINK_GROUPS: Final = "drystone.dev/nvlink-groups"  # annotation "0,1,2,3;4,5,6,7" or label "0-3_4-7"

# Written by the binder, in the very call that binds.
GPUS: Final = "drystone.dev/gpus"  # "0,3"
GPU_MIB: Final = "drystone.dev/gpu-memory-mib"  # granted MiB per device
GPU_MILLI: Final = "drystone.dev/gpu-milli"  # granted share per device, 1000 = whole
CLAIM: Final = "drystone.dev/claim"
JOB_KEY: Final = "drystone.dev/job-key"  # on pods we created
TASK: Final = "drystone.dev/task"  # "<role>/<index>/<attempt>" on pods we created

# Written by the binder on a pod as it takes a claim back.
FENCE: Final = "drystone.dev/fence"  # the claim: its late write was made impossible
FENCE_MARK: Final = "drystone.dev/fence-mark"  # never the same twice, so that the pod's version moves on each time

# Written by the watcher on a job object that an event made, and read from pods and job objects.
TRACEPARENT: Final = "drystone.dev/traceparent"  # W3C trace context

#: All that the binder writes, and nobody else may.
RESULTS: Final = frozenset({GPUS, GPU_MIB, GPU_MILLI, CLAIM, JOB_KEY, TASK, FENCE, FENCE_MARK})

# Written by the preemptor on a pod that is to go and asked to be told before.
EVICT_AT: Final = "drystone.dev/evict-at"  # RFC 3339
EVICT_PLAN: Final = "drystone.dev/evict-plan"

POD_GROUP_LABELS: Final = (
    "scheduling.x-k8s.io/pod-group",  # scheduler-plugins
    "pod-group.scheduling.sigs.k8s.io",  # scheduler-plugins, older
    "scheduling.k8s.io/group-name",  # Volcano (annotation)
    "scheduling.volcano.sh/group-name",  # Volcano, newer
    "pod-group-name",  # KAI (annotation)
    "gang.scheduling.koordinator.sh/name",  # Koordinator (annotation)
)
QUEUE_LABELS: Final = ("kai.scheduler/queue", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
DEFAULT_QUEUE: Final = "default"

#: The understood values of the label `priority`, where a pod names no PriorityClass.
PRIORITY_WORDS: Final = {"low": -100, "normal": 0, "high": 100}
