/* launch/socket.h - where the hub listens, and how a member gets there. */
#ifndef HEDDLE_LAUNCH_SOCKET_H
#define HEDDLE_LAUNCH_SOCKET_H

#include "launch/identity.h"

/* Listens on the card's first address, or on all of this host where the address is not one of its
   own or there is none yet; fills in port and addresses where the card has none. */
hd_status hd_socket_listen(struct hd_launch_card *card, int *descriptor,
                           struct hd_problem *problem);

/* Connects to one address; -1 with errno.  Waits `patience_ms` at most. */
int hd_socket_connect(const char *address, uint16_t port, uint32_t patience_ms);

#endif /* HEDDLE_LAUNCH_SOCKET_H */
