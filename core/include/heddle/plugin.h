/*
 * heddle/plugin.h - what every plugin exports, and what the core gives to a plugin.
 *
 * A plugin is one shared object, heddle_<kind>_<name>.so, which exports exactly one symbol: the
 * constant hd_plugin.  It links no library of heddle; everything that it needs of the core is in
 * struct hd_host.  Before the core loads a plugin, a child process loads it, runs its constructors
 * and destructors, and makes the checks below.  A plugin that crashes, exits or hangs in the child
 * is rejected.  The core then loads the plugin once and keeps it until the process ends.  It calls
 * nothing in the plugin before it has checked, in this order, magic, major version, size and kind.
 *
 * Growth.  The core rejects only a plugin with another abi_major.  A struct whose first member is
 * its size may get new members at its end.  The reader copies min(size, own size) bytes over zeros,
 * and zero or NULL means the default, or "not implemented".  No size is ever compared for equality.
 *
 * Types.  Only these cross the border: integers of fixed width, double, UTF-8 text that ends in a
 * zero byte, opaque pointers and function pointers.  Enums are passed as integers.  No bool, long,
 * FILE, errno, exception or longjmp crosses it.  CUDA types are passed as void *.
 *
 * Threads and phases.  A tag in square brackets says when a function may be called:
 *
 *   [setup]       by one thread, while nothing else runs
 *   [data]        during steps; the core serialises the calls of an instance, but any thread may
 *                 make them, so no state may be thread-local
 *   [step]        during a step, by the thread of the rank
 *   [any-thread]  by any thread, at the same time as any other call
 *
 * Ownership.  A pointer is `static` (valid as long as the process), `owned` (the receiver frees it)
 * or `borrowed` (valid until the named call returns, or until the named event).
 *
 * Sources of this border: CLAP (one constant symbol, a thread for every member), libfabric (tables
 * that begin with their size).  docs/sources.md lists them, and names "the report" that the other
 * headers cite.
 */
#ifndef HEDDLE_PLUGIN_H
#define HEDDLE_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HD_EXPORT __attribute__((visibility("default")))

#define HD_PLUGIN_MAGIC 0x656c6464656821ull /* "!heddle" */
#define HD_ABI_MAJOR    1u
#define HD_ABI_MINOR    2u

/* The result of a call.  0 means done, a positive value is not an error, and a negative value is an
   error, which is permanent for the instance. */
typedef int32_t hd_status;

enum {
    HD_OK = 0,           /* done */
    HD_IN_PROGRESS = 1,  /* begun, not finished */
    HD_BUSY = 2,         /* nothing was done; try again */
    HD_INVALID = -1,     /* the contract forbids this call */
    HD_UNSUPPORTED = -2, /* this machine, version or option cannot do it */
    HD_NO_MEMORY = -3,   /* an allocation failed */
    HD_TIMEOUT = -4,     /* the deadline passed */
    HD_PEER_LOST = -5,   /* another rank's process or connection has ended */
    HD_ABORTED = -6,     /* abort was called */
    HD_PROTOCOL = -7,    /* a peer broke order, size, sequence or content */
    HD_DEVICE = -8,      /* an error of a GPU or of its runtime */
    HD_SYSTEM = -9,      /* an error of the operating system or of a library */
};

enum hd_plugin_kind {
    HD_KIND_SCHEDULE = 1,  /* schedule.h */
    HD_KIND_TRANSPORT = 2, /* transport.h */
    HD_KIND_KERNEL = 3,    /* kernel.h */
};

/* The memory that an address belongs to. */
enum hd_memory {
    HD_MEMORY_HOST = 0,        /* ordinary host memory */
    HD_MEMORY_HOST_PINNED = 1, /* host memory that a GPU can access */
    HD_MEMORY_CUDA = 2,        /* memory of a CUDA device */
};

/* Element types. */
enum hd_dtype {
    HD_F32 = 0,  /* IEEE binary32 */
    HD_F64 = 1,  /* IEEE binary64 */
    HD_BF16 = 2, /* bfloat16 */
    HD_I32 = 3,  /* signed 32-bit integer */
    HD_E4M3 = 4, /* 8-bit float, 4 exponent and 3 mantissa bits (MXFP8 element) */
    HD_E8M0 = 5, /* 8-bit power of two (MXFP8 scale) */
};

/* The type of an option, and the member of hd_option_value that holds its value. */
enum hd_option_type {
    HD_OPTION_INTEGER = 1, /* value.integer */
    HD_OPTION_NUMBER = 2,  /* value.number */
    HD_OPTION_FLAG = 3,    /* "on" or "off": value.integer is 1 or 0 */
    HD_OPTION_BYTES = 4,   /* "64K": value.integer, in bytes */
    HD_OPTION_TEXT = 5,    /* value.text */
};

/* One row of a plugin's option table: a key of the section [kind.name] in the ini file.  All
   strings are static. */
struct hd_option {
    const char *name;    /* the key, [a-z0-9_]+ */
    const char *initial; /* the default, as it would be written in the ini file */
    const char *range;   /* "1..64", "1 | 2 | 4 | 8", or NULL for any value of the type */
    const char *help;    /* one sentence for `heddle inspect` */
    uint32_t type;       /* enum hd_option_type */
    uint32_t reserved;   /* 0 */
};

/* The effective value of one option.  The core has checked its type and range. */
struct hd_option_value {
    int64_t integer;
    double number;
    const char *text; /* borrowed from the host */
};

/* Why an instance failed: the text that the user reads, and the peer at fault. */
struct hd_error {
    uint32_t size;     /* sizeof(struct hd_error) */
    hd_status status;  /* negative */
    uint32_t rank;     /* the rank at fault; UINT32_MAX: unknown */
    uint32_t channel;  /* UINT32_MAX: the error is not about a channel */
    uint64_t sequence; /* of the message, if there is a channel */
    const char *text;  /* borrowed for the call; states the numbers and the remedy */
};

/* One finished transfer, for the trace.  Times are in nanoseconds of host->now_ns; 0: unknown. */
struct hd_transfer {
    uint32_t size;        /* sizeof(struct hd_transfer) */
    uint32_t channel;     /* index into the channels of the transport's setup */
    uint64_t sequence;    /* of the message on its channel */
    uint64_t begin_ns;    /* when this end was ready, so that bytes could move */
    uint64_t end_ns;      /* when the last byte was visible at the target */
    uint64_t resident_ns; /* how long a kernel held the device before its peer was ready */
};

/*
 * What the core gives to one instance of a plugin.  All functions are [any-thread], and only get
 * and fence may block, until their deadline.  Pass `context` as the first argument of each.
 */
struct hd_host {
    uint32_t size;                         /* of this struct in the core */
    uint32_t rank;                         /* of this process, in the whole job */
    uint32_t rank_count;                   /* of the whole job */
    uint32_t option_count;                 /* of `options` */
    const struct hd_option_value *options; /* [option_count], in the order of hd_plugin.options;
                                              borrowed as long as the host */
    void *context;                         /* the first argument of every function below */

    /* Allocates zero-filled memory, accounted under `tag` (static).  NULL if there is no more. */
    void *(*alloc)(void *context, uint64_t bytes, uint64_t alignment_bytes, const char *tag);
    /* Frees memory of alloc.  Takes NULL. */
    void (*free)(void *context, void *memory);
    /* The monotonic clock of this host, in nanoseconds.  Every deadline refers to this clock. */
    uint64_t (*now_ns)(void *context);
    /* Writes one line to the log.  Levels: 0 error, 1 warning, 2 information, 3 debug. */
    void (*log)(void *context, uint32_t level, const char *text);

    /* Reports an error and returns error->status.  The function that detects the error calls this,
       once; its callers only pass the status on. */
    hd_status (*fail)(void *context, const struct hd_error *error);

    /* The bootstrap: small values under keys, which all ranks can read after a fence. [setup]
       put stores a value, which must be new: HD_INVALID if the key exists, HD_NO_MEMORY.  get waits
       for a value of exactly `bytes`: HD_PROTOCOL if it has another size, HD_TIMEOUT.  fence waits
       until every rank has come to it.  All three may return HD_ABORTED. */
    hd_status (*put)(void *context, const char *key, const void *value, uint64_t bytes);
    hd_status (*get)(void *context, const char *key, void *value, uint64_t bytes,
                     uint64_t deadline_ns);
    hd_status (*fence)(void *context, uint64_t deadline_ns);

    /* Reports a finished transfer to the trace; `transfer` is borrowed for the call. */
    void (*trace_transfer)(void *context, const struct hd_transfer *transfer);

    /* Tells the core of memory that the plugin has taken beside alloc (mapped, pinned, on a
       device), or has given back: the difference in bytes, under a static tag.  A transport's arena
       is accounted at its target, as "transfer".  The memory report of a run is then complete.
       NULL in a core older than 1.1. [any-thread] */
    void (*account)(void *context, int64_t bytes, const char *tag);

    /* 1: the core does not keep transfers, so a plugin may skip trace_transfer and the clock.
       0, also in a core older than 1.2: the core keeps them. */
    uint32_t is_untraced;
    uint32_t reserved;
};

/* The members of hd_plugin that are the same in every plugin of a kind. */
#define HD_PLUGIN_HEAD(plugin_kind)                                                        \
    .magic = HD_PLUGIN_MAGIC, .size = sizeof(struct hd_plugin), .abi_major = HD_ABI_MAJOR, \
    .abi_minor = HD_ABI_MINOR, .kind = plugin_kind

/* What the shared object exports, under the name hd_plugin.  It is constant and static, and so is
   everything that it points to. */
struct hd_plugin {
    uint64_t magic;        /* HD_PLUGIN_MAGIC */
    uint32_t size;         /* sizeof(struct hd_plugin), as the plugin was compiled */
    uint16_t abi_major;    /* HD_ABI_MAJOR; another value is rejected */
    uint16_t abi_minor;    /* of the headers it was compiled with; never a reason to reject */
    uint32_t kind;         /* enum hd_plugin_kind */
    uint32_t option_count; /* of `options` */
    const struct hd_option *options; /* [option_count] */
    uint64_t capabilities;           /* the bits of its kind: transport.h, kernel.h */
    const char *name;                /* as in the ini file and the file name; [a-z0-9_]+ */
    const char *summary;             /* one sentence for `heddle list` */
    const char *vendor;
    const char *version;
    const char *licence; /* an SPDX identifier */
    const char *source;  /* the paper that it implements, or the library that it uses */
    const void *ops;     /* the function table of its kind, whose first member is its size */
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_PLUGIN_H */
