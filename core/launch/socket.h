/* launch/socket.h - where the hub, rank 0's process, listens, and how a member connects to it. */
#ifndef HEDDLE_LAUNCH_SOCKET_H
#define HEDDLE_LAUNCH_SOCKET_H

#include "base/problem.h"

#define HD_HUB_ADDRESS_MAX 8u
#define HD_TOKEN_BYTES     16u

struct hd_hub_address {
    uint32_t address_count;
    char addresses[HD_HUB_ADDRESS_MAX][64]; /* names or numbers; a member tries them in order */
    uint16_t port;                          /* 0: any free port */
    /* Of a PMIx run: the hub accepts only ranks that send it.  Else zeros, as torchrun has none. */
    uint8_t token[HD_TOKEN_BYTES];
};

/* Listens on the first address of `hub`, or on all addresses of this host if that one is not local
   or there is none yet; fills in the port and the addresses that `hub` lacks. */
hd_status hd_socket_listen(struct hd_hub_address *hub, int *descriptor, struct hd_problem *problem);

/* Connects to one address within `patience_ms`; -1 with errno. */
int hd_socket_connect(const char *address, uint16_t port, uint32_t patience_ms);

/* NULL: `address` is an address, or a name that this host can resolve; else why not.  Static. */
const char *hd_socket_fault(const char *address);

#endif /* HEDDLE_LAUNCH_SOCKET_H */
