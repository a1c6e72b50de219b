/* registry/elf.c - the checks of a file before the loader reads it. */
#include "registry/internal.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_COUNT_MAX = 64 };

#if defined __x86_64__
enum { THIS_MACHINE = EM_X86_64 };
#elif defined __aarch64__
enum { THIS_MACHINE = EM_AARCH64 };
#elif defined __riscv
enum { THIS_MACHINE = EM_RISCV };
#elif defined __powerpc64__
enum { THIS_MACHINE = EM_PPC64 };
#else
#error "add this machine's EM_ number of elf.h"
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
enum { THIS_ORDER = ELFDATA2LSB };
#else
enum { THIS_ORDER = ELFDATA2MSB };
#endif

static bool elf_refuse(char *reason, const char *text)
{
    snprintf(reason, HD_CANDIDATE_REASON_BYTES, "%s", text);
    return false;
}

static bool elf_check_header(const Elf64_Ehdr *header, char *reason)
{
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) {
        return elf_refuse(reason, "not an ELF file");
    }
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != THIS_ORDER ||
        header->e_machine != THIS_MACHINE) {
        return elf_refuse(reason, "built for another machine");
    }
    if (header->e_type != ET_DYN) {
        return elf_refuse(reason, "not a shared object");
    }
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0 ||
        header->e_phnum > HEADER_COUNT_MAX) {
        return elf_refuse(reason, "its program headers are not valid");
    }
    return true;
}

/* An access to a segment past the end of the file would be a SIGBUS. */
static bool elf_check_segments(const Elf64_Phdr *headers, uint32_t count, uint64_t file_bytes,
                               char *reason)
{
    bool has_load = false;

    for (uint32_t i = 0; i < count; i++) {
        const Elf64_Phdr *header = &headers[i];
        if (header->p_type != PT_LOAD && header->p_type != PT_DYNAMIC) {
            continue;
        }
        has_load |= header->p_type == PT_LOAD;
        if (header->p_offset > file_bytes || header->p_filesz > file_bytes - header->p_offset) {
            snprintf(reason, HD_CANDIDATE_REASON_BYTES,
                     "truncated: a segment ends at byte %llu, the file at %llu",
                     (unsigned long long)(header->p_offset + header->p_filesz),
                     (unsigned long long)file_bytes);
            return false;
        }
    }
    return has_load || elf_refuse(reason, "it has no segment to load");
}

static bool elf_check_opened(int file, char *reason)
{
    Elf64_Phdr headers[HEADER_COUNT_MAX];
    Elf64_Ehdr header;
    struct stat about;

    if (fstat(file, &about) != 0) {
        return elf_refuse(reason, strerror(errno));
    }
    if (!S_ISREG(about.st_mode)) {
        return elf_refuse(reason, "not a regular file");
    }
    if (pread(file, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        return elf_refuse(reason, "truncated: shorter than an ELF header");
    }
    if (!elf_check_header(&header, reason)) {
        return false;
    }
    const size_t bytes = header.e_phnum * sizeof headers[0];
    if (header.e_phoff > (uint64_t)about.st_size ||
        pread(file, headers, bytes, (off_t)header.e_phoff) != (ssize_t)bytes) {
        return elf_refuse(reason, "truncated: its program headers are past its end");
    }
    return elf_check_segments(headers, header.e_phnum, (uint64_t)about.st_size, reason);
}

bool hd_elf_is_loadable(const char *path, char reason[HD_CANDIDATE_REASON_BYTES])
{
    /* O_NONBLOCK, because the file may be a FIFO. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (file < 0) {
        return elf_refuse(reason, strerror(errno));
    }
    const bool is_loadable = elf_check_opened(file, reason);
    close(file);
    return is_loadable;
}
