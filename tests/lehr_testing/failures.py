"""Messages of torch, NCCL, the NVIDIA driver, glibc, the kernel and others for failed trainings.

Verbatim, but for addresses, sizes and names; by the cause that Lehr is to give it. At least one for
each expression of ``lehr.control.retries``, and one for each branch of an expression.
"""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, ...]] = {
    "ecc_error": (
        (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be "
            "asynchronously reported at some other API call"
        ),
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (Double Bit Error) ECC Error",
        (
            "NVRM: Xid (PCI:0000:41:00): 63, pid=1896, Row Remapper: New row marked for remapping, "
            "reset gpu to activate."
        ),
        "NVRM: Xid (PCI:0000:41:00): 64, pid='<unknown>', Row Remapper: Failed to update InfoROM",
        (
            "NVRM: Xid (PCI:0000:01:00): 94, pid=7194, name=python, Contained: CE User Channel (0x9). "
            "RST: No, D-RST: No"
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG "
            "(0x2,0x0). RST: Yes, D-RST: No"
        ),
        "        Double Bit ECC                    : 2",
        "Detected 3 volatile double-bit ECC error(s) in GPU 5.",
        "CUDA driver error: CUDA_ERROR_ECC_UNCORRECTABLE",
    ),
    "gpu_lost": (
        "NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.",
        (
            "NVRM: Xid (PCI:0000:05:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error "
            "detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        ),
        (
            "NVRM: Xid (PCI:0000:9d:00): 119, pid=1234, name=nvidia-smi, Timeout after 6s of waiting "
            "for RPC response from GPU7 GSP! Expected function 76 (GSP_RM_CONTROL)"
        ),
        "NVRM: Xid (PCI:0000:0f:00): 120, pid='<unknown>', name=<unknown>, GSP task exception: Load",
        (
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel "
            "errors might be asynchronously reported"
        ),
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        "RuntimeError: CUDA error: unknown error",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "cuInit: 802 System not yet initialized",
    ),
    "hang": (
        (
            "error: hang at step 1,204: rank 5 on n2 has not entered all-reduce 4,211 (layers.7); "
            "its Python is in `Loader.batch` (data/loader.py:165)"
        ),
    ),
    "stalled": ("no step for 612 s: stall_limit_s is 600",),
    "out_of_memory": (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 79.10 GiB of which 1.13 GiB is free. Including non-PyTorch memory, this process "
            "has 77.96 GiB memory in use."
        ),
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory.",
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total "
            "capacity; 9.71 GiB already allocated; 15.44 MiB free)"
        ),
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        (
            "RuntimeError: HIP out of memory. Tried to allocate 256.00 MiB (GPU 0; 15.98 GiB total "
            "capacity)"
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate "
            "memory)"
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough "
            "memory: you tried to allocate 8589934592 bytes."
        ),
        'Traceback (most recent call last):\n  File "x.py", line 1\nMemoryError',
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        (
            "Memory cgroup out of memory: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
            "task=python"
        ),
    ),
    "shared_memory_full": (
        (
            "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible "
            "that dataloader's workers are out of shared memory. Please try to raise your shared memory "
            "limit."
        ),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
            "shared memory (shm)."
        ),
        (
            "RuntimeError: unable to write to file </torch_4242_1730551003_12>: No space left on device "
            "(28)"
        ),
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_4242_1048443232_0>: "
            "Resource temporarily unavailable (11)"
        ),
    ),
    "disk_full": (
        "fallocate: fallocate failed: No space left on device",
        "cp: error writing 'model.safetensors': Disk quota exceeded",
        "OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar: '/runs/x/m'",
        "OSError: [Errno 122] Der zugewiesene Plattenplatz (Quota) ist überschritten",
    ),
    "nccl_timeout": (
        (
            "[rank3]:[E1119 10:11:12.131 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=8817, OpType=ALLREDUCE, NumelIn=26214400, "
            "NumelOut=26214400, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
            "waiting 1800000ms for recv operation to complete"
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:134] Timed out "
            "waiting 1800000ms for send operation to complete"
        ),
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank 1] Timeout at NCCL work: 128, "
            "last enqueued NCCL work: 128, last completed NCCL work: 127."
        ),
        (
            "RuntimeError: [Rank 2] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
            "Timeout(ms)=1800000) ran for 1800977 milliseconds before timing out."
        ),
    ),
    "nccl_error": (
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
            "ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error, NCCL version "
            "2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process "
            "exiting prematurely."
        ),
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
            "error."
        ),
        "ncclInternalError: Internal check failed.",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "RuntimeError: NCCL communicator was aborted on rank 1.",
    ),
    "network": (
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
            "C10d store has failed. See inner exception for details."
        ),
        (
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
            "closed. Did the remote server shutdown or crash?"
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 "
            "clients joined."
        ),
        (
            "[W socket.cpp:460] [c10d] The client socket has timed out after 600000ms while trying to "
            "connect to (10.0.0.7, 29500)."
        ),
        (
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node-7]:29500 (errno: "
            "111 - Connection refused)."
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            "[127.0.0.1]:40123"
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] read [10.0.0.5]:51044: "
            "Connection reset by peer"
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.0.1]:2119: "
            "Connection refused"
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:394] writev [10.0.0.5]:13961: "
            "Broken pipe"
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:144] connect [10.0.0.5]:13961: "
            "Connection timed out"
        ),
        "The server socket has failed to bind to [::]:29500 (errno: 98 - EADDRINUSE)",
        "OSError: [Errno 98] Address already in use",
        (
            "[W socket.cpp:436] The server socket has failed to bind to 0.0.0.0:29500: address already in "
            "use"
        ),
    ),
    "download_failed": (
        (
            "huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for "
            "url: https://huggingface.co/api/datasets/x"
        ),
        (
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/x: "
            "offline mode is enabled."
        ),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the "
            "file on the Hub and we cannot find the requested files in the local cache."
        ),
        "requests.exceptions.ConnectionError: (ProtocolError('Connection aborted.'))",
        "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='huggingface.co', port=443)",
        "httpx.ReadTimeout: The read operation timed out",
        "httpcore.ConnectError: All connection attempts failed",
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443)",
        "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/x",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
    ),
    "device_assert": (
        (
            "../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [0,0,0], thread: "
            "[0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side "
            "assert triggered"
        ),
    ),
    "user_code": ("Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'wte'",),
}
