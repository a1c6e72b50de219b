/*
 * heddle/plugin.h - what every plugin exports, and what the core lends it.
 *
 * A plugin is one shared object, heddle_<kind>_<name>.so, that exports one
 * constant, hd_plugin, and nothing else.  It links nothing of heddle's: whatever
 * it needs of the core arrives in struct hd_host.  The core loads it once, keeps it
 * until the process ends, and asks it nothing before it has checked, in this
 * order, magic, major version, size and kind.  Before that a child has loaded it,
 * run its constructors and destructors, checked the same and ended: what crashes,
 * leaves the process or does not return there is refused.
 *
 * Growth: only another abi_major is refused.  A struct that begins with its size is
 * only appended to; its reader copies min(size, own size) over zeros, and zero or
 * NULL means the default or not implemented.  No size is ever compared for equality.
 *
 * Types at this border: integers of fixed width, double, UTF-8 text that ends in
 * zero, opaque pointers, function pointers.  No enum, bool, long, FILE or errno
 * crosses it, and no exception or longjmp; CUDA's types cross as void *.
 *
 * Threads.  A hd_host may be used from any thread; its functions never block but
 * get and fence, which have a deadline.
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

typedef int32_t hd_status;

/* 0 done; above 0 not an error; below 0 an error, which stays with its instance. */
enum {
    HD_OK = 0,
    HD_IN_PROGRESS = 1,  /* begun, not over */
    HD_BUSY = 2,         /* took nothing; try again */
    HD_INVALID = -1,     /* a call that the contract forbids */
    HD_UNSUPPORTED = -2, /* this machine, version or option cannot */
    HD_NO_MEMORY = -3,
    HD_TIMEOUT = -4,
    HD_PEER_LOST = -5,
    HD_ABORTED = -6,
    HD_PROTOCOL = -7, /* the peer broke order, size, sequence or content */
    HD_DEVICE = -8,
    HD_SYSTEM = -9,
};

enum hd_plugin_kind { HD_KIND_SCHEDULE = 1, HD_KIND_TRANSPORT = 2, HD_KIND_KERNEL = 3 };

/* Where an address lies. */
enum hd_memory { HD_MEMORY_HOST = 0, HD_MEMORY_HOST_PINNED = 1, HD_MEMORY_CUDA = 2 };

enum hd_dtype { HD_F32 = 0, HD_F64 = 1, HD_BF16 = 2, HD_I32 = 3, HD_E4M3 = 4, HD_E8M0 = 5 };

enum hd_option_type {
    HD_OPTION_INTEGER = 1, /* value.integer */
    HD_OPTION_NUMBER = 2,  /* value.number */
    HD_OPTION_FLAG = 3,    /* on or off: value.integer 1 or 0 */
    HD_OPTION_BYTES = 4,   /* 64K: value.integer */
    HD_OPTION_TEXT = 5,    /* value.text */
};

/* One row of a plugin's option table: a key of the section [kind.name] of the ini file. */
struct hd_option {
    const char *name;    /* [a-z0-9_]+ */
    const char *initial; /* the default, as it would stand in the file */
    const char *range;   /* "1..64", "1 | 2 | 4 | 8", or NULL */
    const char *help;    /* one sentence */
    uint32_t type;       /* enum hd_option_type */
    uint32_t reserved;
};

/* The effective value of one option, already checked against type and range. */
struct hd_option_value {
    int64_t integer;
    double number;
    const char *text;
};

/* Why an instance failed: the sentence that the user reads, and who is at fault. */
struct hd_error {
    uint32_t size;
    hd_status status;
    uint32_t rank;    /* the peer at fault; UINT32_MAX: none known */
    uint32_t channel; /* UINT32_MAX: none */
    uint64_t sequence;
    const char *text; /* borrowed for the call; names the numbers and the remedy */
};

/* One finished transfer, for the trace; a time that is not known is 0. */
struct hd_transfer {
    uint32_t size;
    uint32_t channel;
    uint64_t sequence;
    uint64_t begin_ns;    /* this end was ready, and bytes could move; on the host's clock */
    uint64_t end_ns;      /* the last byte was visible at the target */
    uint64_t resident_ns; /* a kernel held the device before its peer was there */
};

struct hd_host {
    uint32_t size;
    uint32_t rank; /* of the world */
    uint32_t rank_count;
    uint32_t option_count;
    const struct hd_option_value *options; /* in the order of hd_plugin.options */
    void *context;                         /* the first argument of every call below */

    /* Zero-filled and accounted under `tag` (static); NULL when there is no more. */
    void *(*alloc)(void *context, uint64_t bytes, uint64_t alignment_bytes, const char *tag);
    void (*free)(void *context, void *memory); /* takes NULL */
    uint64_t (*now_ns)(void *context);         /* monotonic; every deadline is of this clock */
    void (*log)(void *context, uint32_t level, const char *text); /* 0 error .. 3 debug */

    /* Reports an error, once, by whoever decides it, and returns error->status. */
    hd_status (*fail)(void *context, const struct hd_error *error);

    /* The bootstrap: small values under keys, visible to all ranks after a fence. [setup] */
    hd_status (*put)(void *context, const char *key, const void *value, uint64_t bytes);
    hd_status (*get)(void *context, const char *key, void *value, uint64_t bytes,
                     uint64_t deadline_ns);
    hd_status (*fence)(void *context, uint64_t deadline_ns);

    void (*trace_transfer)(void *context, const struct hd_transfer *transfer);

    /* Memory that the plugin takes beside alloc (mapped, pinned, on a device), or gives back: the
       difference in bytes, under a static tag; an arena counts where its target is, as "transfer".
       What a run says of its memory is then whole.  NULL in a core before 1.1. [any-thread] */
    void (*account)(void *context, int64_t bytes, const char *tag);

    /* 1: nobody keeps what trace_transfer is told, so a plugin may save the calls and the clock.
       0, as in a core before 1.2: it is kept. */
    uint32_t is_untraced;
    uint32_t reserved;
};

/* The members of hd_plugin that are the same in every plugin of a kind. */
#define HD_PLUGIN_HEAD(plugin_kind)                                                        \
    .magic = HD_PLUGIN_MAGIC, .size = sizeof(struct hd_plugin), .abi_major = HD_ABI_MAJOR, \
    .abi_minor = HD_ABI_MINOR, .kind = plugin_kind

/* What the shared object exports; constant, and alive as long as the process. */
struct hd_plugin {
    uint64_t magic;
    uint32_t size;
    uint16_t abi_major;
    uint16_t abi_minor; /* of the headers it was built with; never a gate */
    uint32_t kind;      /* enum hd_plugin_kind */
    uint32_t option_count;
    const struct hd_option *options; /* [option_count] */
    uint64_t capabilities;           /* of its kind */
    const char *name;                /* as in the ini and in the file name; [a-z0-9_]+ */
    const char *summary;             /* one sentence */
    const char *vendor;
    const char *version;
    const char *licence; /* SPDX */
    const char *source;  /* the paper, or the library that it drives */
    const void *ops;     /* the table of its kind, which begins with its size */
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_PLUGIN_H */
