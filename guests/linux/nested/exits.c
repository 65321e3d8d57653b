/*
 * What an exit costs below KVM: a guest of real mode that does one thing again and again, and
 * marks around it for who counts instructions from outside. `exits TIMES`.
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define START 0x1000
#define PAGE 4096u
/* Pages from here on are touched, each once. */
#define FIRST (1u << 21)

static int kvm, vm, vcpu;
static struct kvm_run *run;
static uint8_t *memory;
static uint32_t untouched = FIRST;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Its code is in memory: runs it so often, until it halts. What it writes to a port comes to nothing. */
static void run_it(uint32_t times)
{
    struct kvm_regs registers = {.rip = START, .rbx = untouched, .rdi = times, .rflags = 2};
    if (ioctl(vcpu, KVM_SET_REGS, &registers))
        fail("registers");
    /* nopl imm32(%rax,%rax,1): a window opens, and closes. */
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, 0x01, 0x00, 0x58, 0x45" ::: "memory");
    int result;
    do
        result = ioctl(vcpu, KVM_RUN, 0);
    while (!result && run->exit_reason == KVM_EXIT_IO);
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x58, 0x45" ::: "memory");
    if (result || run->exit_reason != KVM_EXIT_HLT) {
        printf("L2 ended by %d, %u\n", result, run->exit_reason);
        exit(1);
    }
}

/* What is done with EBX at the next page, and the loop around it. */
static void measure(const char *name, const uint8_t *code, size_t bytes, uint32_t times, bool touches)
{
    /* dec edi; jnz to the beginning; hlt */
    uint8_t end[] = {0x66, 0x4f, 0x75, (uint8_t)-(bytes + 4), 0xf4};
    memcpy(memory + START, code, bytes);
    memcpy(memory + START + bytes, end, sizeof end);
    for (int window = 0; window < 3; window++) {
        uint32_t some = window < 2 ? times / 5 : times;
        run_it(some);
        untouched += touches ? some * PAGE : 0;
    }
    printf("@exitless exits %s times=%u\n", name, times - times / 5);
}

int main(int count, char **words)
{
    uint32_t times = count == 2 ? (uint32_t)strtoul(words[1], NULL, 10) : 0;
    if (times < 5)
        return fprintf(stderr, "usage: %s TIMES, 5 at least\n", words[0]), 2;
    kvm = open("/dev/kvm", O_RDWR);
    vm = kvm < 0 ? -1 : ioctl(kvm, KVM_CREATE_VM, 0);
    vcpu = vm < 0 ? -1 : ioctl(vm, KVM_CREATE_VCPU, 0);
    size_t size = FIRST + (size_t)(times + 2 * (times / 5)) * PAGE;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (vcpu < 0 || memory == MAP_FAILED)
        fail("KVM's guest");
    struct kvm_userspace_memory_region region = {.memory_size = size, .userspace_addr = (uint64_t)memory};
    if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
        fail("its memory");
    run = mmap(NULL, (size_t)ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    struct kvm_sregs segments;
    if (run == MAP_FAILED || ioctl(vcpu, KVM_GET_SREGS, &segments))
        fail("its CPU");
    segments.cs.base = segments.cs.selector = 0;
    segments.ds.limit = ~0u;
    segments.ds.g = 1;
    if (ioctl(vcpu, KVM_SET_SREGS, &segments))
        fail("its segments");
    /* xor eax,eax; cpuid (which keeps edi) */
    static const uint8_t cpuid[] = {0x66, 0x31, 0xc0, 0x0f, 0xa2};
    /* mov ecx,8Bh; rdmsr: the revision of the CPU's microcode, which KVM makes up */
    static const uint8_t msr[] = {0x66, 0xb9, 0x8b, 0, 0, 0, 0x0f, 0x32};
    /* out 80h,al: this program's */
    static const uint8_t port[] = {0xe6, 0x80};
    /* mov al,[ebx]; add ebx,4096 */
    static const uint8_t touch[] = {0x67, 0x8a, 0x03, 0x66, 0x81, 0xc3, 0, 0x10, 0, 0};
    measure("cpuid", cpuid, sizeof cpuid, times, false);
    measure("msr", msr, sizeof msr, times, false);
    measure("port", port, sizeof port, times, false);
    measure("touch", touch, sizeof touch, times, true);
    return 0;
}
