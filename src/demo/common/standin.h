/* Shared by both stand-in libraries: error codes, the table of exported
 * functions, and the counting of calls. No NVIDIA header is used; names and
 * numbers are the real ones, types are as wide as the real ones. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>
#include <stdint.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    INVALID_MEMCPY_DIRECTION = 21, /* runtime only */
    INSUFFICIENT_DRIVER = 35,      /* runtime only */
    INVALID_DEVICE_FUNCTION = 98,  /* runtime only */
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    ALREADY_MAPPED = 208,
    FILE_NOT_FOUND = 301,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
};

/* One row an error; NULL where a library has no such error. */
struct error_text {
    int code;
    const char *driver, *runtime, *text;
};
const struct error_text *error_text(int code);

/* The exported functions in byte order of their names, written by build.rs
 * together with the entry code that counts each call in standin_counts[]. */
struct function_row {
    const char *name;
    void *address; /* of the exported symbol */
};
extern const struct function_row standin_functions[];
extern const size_t standin_function_count;
extern uint64_t standin_counts[];

/* NULL if this library exports no such function. */
const struct function_row *function_named(const char *name);

/* Exported by both libraries: calls of `name` so far in this process, into the
 * library whose symbol was taken. UINT64_MAX if there is no such function. */
uint64_t standin_calls(const char *name);

/* What nvcc makes of a __global__ function is a fat binary; here it is a table
 * of host functions that the stand-in driver calls instead of a GPU. */
#define STANDIN_IMAGE 0x31454741444e5453ULL
#define STANDIN_PARAMS 12
struct standin_kernel {
    const char *name;                 /* mangled, as in a cubin */
    void (*body)(void **params);      /* may be NULL: takes time, does nothing */
    unsigned microseconds;            /* on the simulated GPU */
    unsigned char sizes[STANDIN_PARAMS]; /* of the parameters, in bytes, 0 ends */
};
struct standin_image {
    uint64_t magic;
    unsigned count;
    const struct standin_kernel *kernels;
};
/* As in a real program: what __cudaRegisterFatBinary and cuModuleLoadFatBinary get. */
#define FATBIN_WRAPPER 0x466243b1u
struct fatbin_wrapper {
    unsigned magic, version;
    const void *data;
    void *unused;
};

#define EXPORT __attribute__((visibility("default")))

#endif
