#include "launch/socket.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int socket_resolve(const char *address, uint16_t port, struct addrinfo **found)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = address == NULL ? AI_PASSIVE : 0};
    char service[8];

    snprintf(service, sizeof service, "%u", port);
    return getaddrinfo(address, service, &hints, found);
}

const char *hd_socket_fault(const char *address)
{
    struct addrinfo *found = NULL;
    const int error = socket_resolve(address, 1, &found);

    if (error == 0) {
        freeaddrinfo(found);
    }
    return error != 0 ? gai_strerror(error) : NULL;
}

/* --- the hub -------------------------------------------------------------------------------- */

static int socket_listen_at(const struct addrinfo *at)
{
    const int yes = 1, no = 0;
    const int descriptor = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (descriptor < 0) {
        return -1;
    }
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (at->ai_family == AF_INET6) {
        setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    }
    if (bind(descriptor, at->ai_addr, at->ai_addrlen) != 0 || listen(descriptor, SOMAXCONN) != 0) {
        const int error = errno;
        close(descriptor);
        errno = error;
        return -1;
    }
    return descriptor;
}

/* -1 with the errno of the last attempt. */
static int socket_listen_by_name(const char *address, uint16_t port)
{
    struct addrinfo *found = NULL;
    int descriptor = -1;

    if (socket_resolve(address, port, &found) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (int pass = 0; pass < 2 && descriptor < 0; pass++) {
        /* IPv6 first: its sockets accept IPv4 as well. */
        for (const struct addrinfo *at = found; at != NULL && descriptor < 0; at = at->ai_next) {
            if ((at->ai_family == AF_INET6) == (pass == 0)) {
                descriptor = socket_listen_at(at);
            }
        }
    }
    freeaddrinfo(found);
    return descriptor;
}

static uint16_t socket_port_of(int descriptor)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    char service[8] = "0";
    unsigned port = 0;

    if (getsockname(descriptor, (struct sockaddr *)&name, &length) == 0 &&
        getnameinfo((struct sockaddr *)&name, length, NULL, 0, service, sizeof service,
                    NI_NUMERICSERV) == 0 &&
        sscanf(service, "%u", &port) == 1) {
        return (uint16_t)port;
    }
    return 0;
}

static void socket_add_address(struct hd_hub_address *hub, const struct ifaddrs *row)
{
    const struct sockaddr *const name = row->ifa_addr;
    char text[64];

    if (name == NULL || !(row->ifa_flags & IFF_UP) ||
        (name->sa_family != AF_INET && name->sa_family != AF_INET6) ||
        hub->address_count == HD_HUB_ADDRESS_MAX) {
        return;
    }
    const socklen_t length =
        name->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    const int error = getnameinfo(name, length, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    if (error == 0 &&
        strchr(text, '%') == NULL) { /* an address with a scope is useless on other hosts */
        memcpy(hub->addresses[hub->address_count++], text, sizeof text);
    }
}

/* Networks first: only ranks of this host can connect over loopback. */
static void socket_add_addresses(struct hd_hub_address *hub)
{
    struct ifaddrs *list = NULL;

    if (getifaddrs(&list) != 0) {
        return;
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        for (const struct ifaddrs *row = list; row != NULL; row = row->ifa_next) {
            if (((row->ifa_flags & IFF_LOOPBACK) != 0) == (pass == 1)) {
                socket_add_address(hub, row);
            }
        }
    }
    freeifaddrs(list);
}

hd_status hd_socket_listen(struct hd_hub_address *hub, int *descriptor, struct hd_problem *problem)
{
    const char *const address = hub->address_count > 0 ? hub->addresses[0] : NULL;

    int made = socket_listen_by_name(address, hub->port);
    if (made < 0 && address != NULL && errno == EADDRNOTAVAIL) {
        /* Other hosts may know this host by an address that it does not have itself. */
        made = socket_listen_by_name(NULL, hub->port);
    }
    if (made < 0) {
        hd_problem_place(problem, "rank 0");
        hd_problem_remedy(problem, "give another MASTER_PORT to all ranks; only one of them may "
                                   "have RANK=0");
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_USAGE, "cannot listen on %s port %u: %s",
                              address != NULL ? address : "any address", hub->port,
                              strerror(errno));
    }
    if (hub->port == 0) {
        hub->port = socket_port_of(made);
        socket_add_addresses(hub);
    }
    *descriptor = made;
    return HD_OK;
}

/* --- a member ------------------------------------------------------------------------------- */

static int socket_finish_connect(int descriptor, uint32_t patience_ms)
{
    struct pollfd awaited = {.fd = descriptor, .events = POLLOUT};
    socklen_t length = sizeof errno;
    int error = ETIMEDOUT;

    if (poll(&awaited, 1, (int)patience_ms) > 0 &&
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        error = errno;
    }
    return error;
}

static int socket_connect_at(const struct addrinfo *at, uint32_t patience_ms)
{
    const int descriptor = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;

    if (descriptor < 0) {
        return -1;
    }
    if (connect(descriptor, at->ai_addr, at->ai_addrlen) != 0) {
        error = errno == EINPROGRESS ? socket_finish_connect(descriptor, patience_ms) : errno;
    }
    if (error != 0) {
        close(descriptor);
        errno = error;
        return -1;
    }
    return descriptor;
}

int hd_socket_connect(const char *address, uint16_t port, uint32_t patience_ms)
{
    struct addrinfo *found = NULL;
    int descriptor = -1;

    assert(address != NULL && port != 0);
    if (socket_resolve(address, port, &found) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (const struct addrinfo *at = found; at != NULL && descriptor < 0; at = at->ai_next) {
        descriptor = socket_connect_at(at, patience_ms);
    }
    const int error = errno;
    freeaddrinfo(found);
    errno = error;
    return descriptor;
}
