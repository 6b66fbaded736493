/* Lets User-Mode Linux run on a processor with more registers than it knows.
 *
 * The kernel keeps its processes' vector registers by ptrace, in 2,696 bytes: all that there was before AMX. A host with
 * AMX has 11,008, and takes all of them or none (EFAULT). So what the kernel gives is written over the host's own
 * registers, and these are set whole. It keeps the rest as it is, which no process here uses: the host gives AMX only
 * to a process that asks.
 *
 * Preloaded into the kernel, which calls ptrace of the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static long (*libc_ptrace)(int, pid_t, void *, void *);

__attribute__((constructor)) static void find(void) {
    libc_ptrace = (long (*)(int, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(enum __ptrace_request request, ...) {
    /* Not on the stack: the kernel's own are small. It has one processor, and so one caller at a time. */
    static char whole[65536] __attribute__((aligned(64)));
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (!libc_ptrace)
        find();
    long done = libc_ptrace(request, pid, address, data);
    if (done != -1 || errno != EFAULT || (int)request != PTRACE_SETREGSET ||
        address != (void *)NT_X86_XSTATE)
        return done;
    const struct iovec *given = data;
    struct iovec all = {whole, sizeof whole};
    if (libc_ptrace(PTRACE_GETREGSET, pid, address, &all) == -1)
        return -1;
    if (given->iov_len >= all.iov_len) {
        errno = EFAULT;
        return -1;
    }
    memcpy(whole, given->iov_base, given->iov_len);
    return libc_ptrace(PTRACE_SETREGSET, pid, address, &all);
}
