"""Complete lists of codes, each with a class of its own: errno, signals, HTTP, gRPC, CUDA, NCCL, Slurm, Kubernetes."""

import errno
import http
import os
import signal

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Severity


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


HEAD = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in step\n    work()\n'
NOT_OF_LINUX = frozenset(
    words(
        "ENOCSI EL2NSYNC EL2HLT EL3HLT EL3RST EADV ENAVAIL EDOTDOT ENOANO ECHRNG EUNATCH ENOTNAM ELNRNG EXFULL ESRMNT"
        " ENOSTR EBADSLT EISNAM ENOSR EBFONT ECANCELED ERFKILL"
    )
)
"""Of STREAMS and XENIX, which Linux keeps and does not raise, and two that name nobody."""
ERRNO = {name: number for number, name in errno.errorcode.items() if name not in NOT_OF_LINUX}
HARMLESS = frozenset(words("SIGCHLD SIGCONT SIGURG SIGWINCH SIGTSTP SIGTTIN SIGTTOU SIGSTOP"))
SIGNALS = [s for s in signal.Signals if s.name not in HARMLESS and s < 32]
RPC = words(
    "CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED"
    " FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
)
CUDA = words("""
InvalidValue MemoryAllocation InitializationError CudartUnloading ProfilerDisabled ProfilerNotInitialized
ProfilerAlreadyStarted ProfilerAlreadyStopped InvalidConfiguration InvalidPitchValue InvalidSymbol InvalidHostPointer
InvalidDevicePointer InvalidTexture InvalidTextureBinding InvalidChannelDescriptor InvalidMemcpyDirection
AddressOfConstant TextureFetchFailed TextureNotBound SynchronizationError InvalidFilterSetting InvalidNormSetting
MixedDeviceExecution NotYetImplemented MemoryValueTooLarge StubLibrary InsufficientDriver CallRequiresNewerDriver
InvalidSurface DuplicateVariableName DuplicateTextureName DuplicateSurfaceName DevicesUnavailable
IncompatibleDriverContext MissingConfiguration PriorLaunchFailure LaunchMaxDepthExceeded LaunchFileScopedTex
LaunchFileScopedSurf SyncDepthExceeded LaunchPendingCountExceeded InvalidDeviceFunction NoDevice InvalidDevice
DeviceNotLicensed SoftwareValidityNotEstablished StartupFailure InvalidKernelImage DeviceUninitialized
MapBufferObjectFailed UnmapBufferObjectFailed ArrayIsMapped AlreadyMapped NoKernelImageForDevice AlreadyAcquired
NotMapped NotMappedAsArray NotMappedAsPointer ECCUncorrectable UnsupportedLimit DeviceAlreadyInUse
PeerAccessUnsupported InvalidPtx InvalidGraphicsContext NvlinkUncorrectable JitCompilerNotFound UnsupportedPtxVersion
JitCompilationDisabled UnsupportedExecAffinity UnsupportedDevSideSync Contained InvalidSource FileNotFound
SharedObjectSymbolNotFound SharedObjectInitFailed OperatingSystem InvalidResourceHandle IllegalState LossyQuery
SymbolNotFound NotReady IllegalAddress LaunchOutOfResources LaunchTimeout LaunchIncompatibleTexturing
PeerAccessAlreadyEnabled PeerAccessNotEnabled SetOnActiveProcess ContextIsDestroyed Assert TooManyPeers
HostMemoryAlreadyRegistered HostMemoryNotRegistered HardwareStackError IllegalInstruction MisalignedAddress
InvalidAddressSpace InvalidPc LaunchFailure CooperativeLaunchTooLarge TensorMemoryLeak NotPermitted NotSupported
SystemNotReady SystemDriverMismatch CompatNotSupportedOnDevice MpsConnectionFailed MpsRpcFailure MpsServerNotReady
MpsMaxClientsReached MpsMaxConnectionsReached MpsClientTerminated CdpNotSupported CdpVersionMismatch
StreamCaptureUnsupported StreamCaptureInvalidated StreamCaptureMerge StreamCaptureUnmatched StreamCaptureUnjoined
StreamCaptureIsolation StreamCaptureImplicit CapturedEvent StreamCaptureWrongThread Timeout GraphExecUpdateFailure
ExternalDevice InvalidClusterSize FunctionNotLoaded InvalidResourceType InvalidResourceConfiguration Unknown
""")
DRIVER = words("""
INVALID_VALUE OUT_OF_MEMORY NOT_INITIALIZED DEINITIALIZED STUB_LIBRARY DEVICE_UNAVAILABLE NO_DEVICE INVALID_DEVICE
DEVICE_NOT_LICENSED INVALID_IMAGE INVALID_CONTEXT MAP_FAILED NO_BINARY_FOR_GPU ECC_UNCORRECTABLE UNSUPPORTED_LIMIT
CONTEXT_ALREADY_IN_USE PEER_ACCESS_UNSUPPORTED INVALID_PTX NVLINK_UNCORRECTABLE JIT_COMPILER_NOT_FOUND
UNSUPPORTED_PTX_VERSION CONTAINED FILE_NOT_FOUND SHARED_OBJECT_INIT_FAILED OPERATING_SYSTEM INVALID_HANDLE ILLEGAL_STATE
NOT_FOUND NOT_READY ILLEGAL_ADDRESS LAUNCH_OUT_OF_RESOURCES LAUNCH_TIMEOUT PRIMARY_CONTEXT_ACTIVE CONTEXT_IS_DESTROYED
ASSERT TOO_MANY_PEERS HARDWARE_STACK_ERROR ILLEGAL_INSTRUCTION MISALIGNED_ADDRESS INVALID_ADDRESS_SPACE INVALID_PC
LAUNCH_FAILED NOT_PERMITTED NOT_SUPPORTED SYSTEM_NOT_READY SYSTEM_DRIVER_MISMATCH COMPAT_NOT_SUPPORTED_ON_DEVICE
MPS_CONNECTION_FAILED MPS_CLIENT_TERMINATED STREAM_CAPTURE_INVALIDATED CAPTURED_EVENT TIMEOUT EXTERNAL_DEVICE UNKNOWN
""")
LIBRARIES = [
    f"{library}_STATUS_{status}"
    for library, status in (
        *(("CUBLAS", s) for s in ("NOT_INITIALIZED", "ALLOC_FAILED", "EXECUTION_FAILED", "LICENSE_ERROR")),
        *(("CUDNN", s) for s in ("NOT_INITIALIZED", "BAD_PARAM", "EXECUTION_FAILED", "NOT_SUPPORTED")),
        *((s, "INTERNAL_ERROR") for s in ("HIPBLAS", "CUSOLVER", "CUSPARSE", "CUTENSOR", "CUSPARSELT")),
    )
]
NCCL = words(
    "ncclUnhandledCudaError ncclSystemError ncclInternalError ncclInvalidArgument ncclInvalidUsage ncclRemoteError"
    " ncclTimeout"
)
SLURM = words(
    "BOOT_FAIL CANCELLED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT LAUNCH_FAILED RECONFIG_FAIL"
    " SPECIAL_EXIT"
)
KUBERNETES = words("""
OOMKilled Evicted CrashLoopBackOff ImagePullBackOff ErrImagePull ErrImageNeverPull InvalidImageName
CreateContainerConfigError CreateContainerError RunContainerError ContainerCannotRun StartError PostStartHookError
PreCreateHookError NodeLost NodeNotReady NodeShutdown Preempting Preempted DeadlineExceeded BackoffLimitExceeded
FailedScheduling FailedMount FailedAttachVolume FailedCreatePodSandBox Unhealthy UnexpectedAdmissionError OutOfcpu
OutOfmemory OutOfpods NodeAffinity TaintManagerEviction EvictionByEvictionAPI ContainerStatusUnknown NetworkNotReady
""")


def said(text: str) -> Finding | None:
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    matcher.feed("log", text.encode() + b"\n")
    ranked = rank_findings(matcher.finish())
    known = (f for f in ranked if not f.klass.startswith("unknown_") and f.severity is not Severity.INFO)
    return choose_verdict(ranked).finding or next(known, None)


def _camel(status: str) -> str:
    return "".join(word.title() for word in status.split("_"))


FORMS = {
    "errno in an exception": [f"{HEAD}OSError: [Errno {n}] {os.strerror(n)}: '/mnt/d/x'" for n in ERRNO.values()],
    "errno by its text": [f"{HEAD}RuntimeError: write failed: {os.strerror(n)}" for n in ERRNO.values()],
    "errno by its name": [f"{HEAD}RuntimeError: write failed ({name})" for name in ERRNO],
    "errno in a log": [f"ERROR: write failed: errno: {n} - {os.strerror(n)}" for n in ERRNO.values()],
    "errno of Rust": [f"{HEAD}RuntimeError: {os.strerror(n)} (os error {n})" for n in ERRNO.values()],
    "signal by its name": [f"process 3 terminated with signal {s.name}" for s in SIGNALS],
    "signal as a code": [f"ERROR launcher: process exited with code {128 + s}" for s in SIGNALS],
    "signal by its text": [f"{signal.strsignal(s)} (core dumped)" for s in SIGNALS],
    "HTTP": [
        f"{HEAD}HTTPError: {s.value} {'Client' if s < 500 else 'Server'} Error: {s.phrase} for url: https://a.b/c"
        for s in http.HTTPStatus
        if s >= 400
    ],
    "HTTP in a log": [f"ERROR request failed with status {s.value}" for s in http.HTTPStatus if s >= 400],
    "XLA": [f"{HEAD}jaxlib.xla_extension.XlaRuntimeError: {s}: something" for s in RPC],
    "gRPC": [f"{HEAD}grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC: StatusCode.{s}" for s in RPC],
    "TensorFlow": [f"{HEAD}tensorflow.python.framework.errors_impl.{_camel(s)}Error: something" for s in RPC],
    "CUDA": [f"{HEAD}RuntimeError: call failed with cudaError{name}" for name in CUDA],
    "CUDA's driver": [f"{HEAD}RuntimeError: call failed with CUDA_ERROR_{name}" for name in DRIVER],
    "libraries of CUDA": [f"{HEAD}RuntimeError: call failed with {name}" for name in LIBRARIES],
    "NCCL": [f"{HEAD}RuntimeError: NCCL error: {name}" for name in NCCL],
    "Slurm": [f"JobId=881 State={name} ExitCode=1:0" for name in SLURM],
    "Kubernetes": [f"    Last State:     Terminated\n      Reason:       {name}" for name in KUBERNETES],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_code_of_a_list_has_a_class(form):
    assert [text for text in FORMS[form] if said(text) is None] == []


@pytest.mark.parametrize(
    ("text", "klass", "blame"),
    [
        (f"{HEAD}OSError: [Errno 71] Protocol error: '/mnt/d/x'", "remote_io", "storage"),
        ("process 3 terminated with signal SIGILL", "segfault", "unknown"),
        (f"{HEAD}RuntimeError: Permission denied (os error 13)", "permission_denied", "user"),
        (f"{HEAD}HTTPError: 404 Client Error: Not Found for url: https://a.b/c", "data_missing", "user"),
        (f"{HEAD}HTTPError: 507 Server Error: Insufficient Storage for url: https://a", "hub_network_error", "network"),
        (f"{HEAD}jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: lost", "service_silent", "network"),
        (f"{HEAD}RuntimeError: call failed with CUDA_ERROR_CONTAINED", "gpu_ecc_uncorrectable", "machine"),
        ("JobId=881 State=OUT_OF_MEMORY ExitCode=0:125", "host_oom", "user"),
    ],
)
def test_a_code_says_what_it_is_and_whose(text, klass, blame):
    found = said(text)
    assert found is not None
    assert (found.klass, str(found.blame)) == (klass, blame)


@pytest.mark.parametrize(
    ("path", "klass"),
    [
        ("/e/lib/python3.11/site-packages/triton/runtime/jit.py", "user_compile"),
        ("/e/lib/python3.11/site-packages/h5py/_hl/files.py", "data_corrupt"),
        ("/e/lib/python3.11/site-packages/torch/serialization.py", "ckpt_failed"),
        ("/e/lib/python3.11/site-packages/s3fs/core.py", "object_store_error"),
        ("/e/lib/python3.11/site-packages/httpx/_client.py", "service_silent"),
        ("/e/lib/python3.11/site-packages/torch/distributed/rendezvous.py", "rendezvous_failed"),
        ("/e/lib/python3.11/site-packages/torch/xpu/__init__.py", "cuda_no_device"),
    ],
)
def test_an_exception_that_says_nothing_is_placed_by_where_it_was_raised(path, klass):
    found = said(f'{HEAD}  File "{path}", line 90, in do\n    call()\nRuntimeError: something went wrong')
    assert found is not None
    assert found.klass == klass


def test_the_programs_own_mistake_in_such_a_place_stays_the_programs():
    found = said(f'{HEAD}  File "/e/site-packages/h5py/_hl/files.py", line 90, in do\n    call()\nKeyError: "x"')
    assert found is not None
    assert found.klass == "user_exception"


@pytest.mark.parametrize(
    ("text", "klass"),
    [
        (
            "task 3 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed.",
            "process_lost",
        ),
        (
            "node 0fc1 has been marked dead, it missed too many heartbeats. This can happen when a raylet crashes.",
            "sched_node_fail",
        ),
    ],
)
def test_what_a_line_supposes_does_not_count_before_what_it_reports(text, klass):
    found = said(text)
    assert found is not None
    assert found.klass == klass
