/* A libnvidia-ml.so.1 with two GPUs whose state is read from a file at every call: "KEY VALUE" lines, named by
 * FAKE_NVML_STATE. Only what senses and probes call; signatures and structures as nvml.h has them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned version; int degrees; } Margin;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;

static int gpus[2];
static unsigned num_xids_told;

static long state(const char *key, long otherwise) {
    char name[64];
    long value, found = otherwise;
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return otherwise;
    while (fscanf(file, "%63s %ld", name, &value) == 2)
        if (!strcmp(name, key)) found = value;
    fclose(file);
    return found;
}

static int lost(void *gpu) { return gpu == &gpus[1] && state("lost", 0); }
#define NEEDS(gpu) do { if (lost(gpu)) return GPU_IS_LOST; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "fake error"; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    if (state("hang", 0)) sleep(1000);
    *count = (unsigned)state("count", 2);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    if (index == 1 && state("hidden", 0)) return NO_PERMISSION;
    if (index == 1 && state("unreachable", 0)) return GPU_IS_LOST;
    *gpu = &gpus[index];
    return OK;
}
int nvmlDeviceGetPciInfo_v3(void *gpu, Pci *pci) {
    NEEDS(gpu);
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu == &gpus[1] ? 0x91 : 0x17;
    return OK;
}
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *value) {
    (void)sensor; NEEDS(gpu); *value = (unsigned)state("temperature", 40); return OK;
}
int nvmlDeviceGetTemperatureThreshold(void *gpu, int kind, unsigned *value) {
    (void)gpu; (void)kind;
    if (state("hopper", 0)) return NOT_SUPPORTED;
    *value = 90; return OK;
}
int nvmlDeviceGetMarginTemperature(void *gpu, Margin *margin) {
    NEEDS(gpu); if (!state("hopper", 0)) return NOT_SUPPORTED;
    margin->degrees = (int)state("margin", 50); return OK;
}
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts) { NEEDS(gpu); *milliwatts = 310500; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *milliwatts) { NEEDS(gpu); *milliwatts = 700000; return OK; }
int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz) { (void)kind; NEEDS(gpu); *mhz = 1980; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons) {
    NEEDS(gpu); *reasons = (unsigned long long)state("reasons", 4); return OK;
}
int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, unsigned long long *count) {
    (void)kind; (void)counter; NEEDS(gpu);
    if (gpu == &gpus[0]) return NOT_SUPPORTED;
    *count = (unsigned long long)state("ecc", 0);
    return OK;
}
int nvmlDeviceGetRemappedRows(void *gpu, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    NEEDS(gpu);
    *a = *b = 0; *pending = (unsigned)state("pending", 0); *failed = (unsigned)state("failed", 0);
    return OK;
}
int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, unsigned *active) {
    NEEDS(gpu);
    if (gpu == &gpus[0] || link > 1) return NOT_SUPPORTED;
    *active = link == 0 ? 1 : (unsigned)state("link1", 1);
    return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(void *gpu, unsigned link, int counter, unsigned long long *value) {
    (void)link; (void)counter; NEEDS(gpu); *value = (unsigned long long)state("replays", 0); return OK;
}
int nvmlDeviceGetName(void *gpu, char *name, unsigned length) {
    NEEDS(gpu); strncpy(name, "NVIDIA Fake 80GB", length); return OK;
}
int nvmlDeviceGetUtilizationRates(void *gpu, Use *use) {
    NEEDS(gpu);
    if (gpu == &gpus[0]) return NOT_SUPPORTED;
    use->gpu = (unsigned)state("use", 97); use->memory = 31;
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *gpu, Memory *memory) {
    NEEDS(gpu); memory->total = 80ull << 30; memory->used = 60ull << 30; memory->free = 20ull << 30; return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *listed) {
    NEEDS(gpu);
    if (gpu == &gpus[0] || !state("pid", 0)) { *count = 0; return OK; }
    if (*count < 1 || !listed) { *count = 1; return INSUFFICIENT_SIZE; }
    memset(listed, 0, sizeof *listed);
    listed->pid = (unsigned)state("pid", 0); listed->used = 60ull << 30; *count = 1;
    return OK;
}
int nvmlEventSetCreate(void **set) { *set = &num_xids_told; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set) {
    (void)set; NEEDS(gpu); return types == 8 ? OK : NOT_SUPPORTED;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set; (void)timeout_ms;
    if ((unsigned)state("xids", 0) <= num_xids_told) return TIMEOUT;
    num_xids_told++;
    memset(event, 0, sizeof *event);
    event->device = &gpus[1]; event->type = 8; event->data = (unsigned long long)state("xid", 79);
    return OK;
}
