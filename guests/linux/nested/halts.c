/* A guest of 19 instructions, by KVM alone: says how it ended. */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
    int kvm = open("/dev/kvm", O_RDWR);
    if (kvm < 0) { perror("kvm"); return 1; }
    int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0) { perror("vm"); return 1; }
    uint8_t *mem = mmap(0, 1 << 21, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    /* Real mode: 200 times CPUID and OUT, then HLT. */
    static const uint8_t code[] = {
        0xbf, 0, 0,             /* mov di,0 */
        0x31, 0xc0,             /* 1: xor ax,ax */
        0x0f, 0xa2,             /* cpuid */
        0xba, 0x80, 0x00,       /* mov dx,0x80 */
        0x89, 0xf8,             /* mov ax,di */
        0xee,                   /* out dx,al */
        0x47,                   /* inc di */
        0x81, 0xff, 200, 0,     /* cmp di,200 */
        0x75, 0xef,             /* jne 1b */
        0xf4,                   /* hlt */
    };
    memcpy(mem + 0x1000, code, sizeof code);
    struct kvm_userspace_memory_region r = { .guest_phys_addr = 0, .memory_size = 1 << 21, .userspace_addr = (uint64_t)mem };
    if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &r)) { perror("mem"); return 1; }
    int vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    if (vcpu < 0) { perror("vcpu"); return 1; }
    size_t n = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    struct kvm_run *run = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    struct kvm_sregs s;
    ioctl(vcpu, KVM_GET_SREGS, &s);
    s.cs.base = 0; s.cs.selector = 0;
    ioctl(vcpu, KVM_SET_SREGS, &s);
    struct kvm_regs g = { .rip = 0x1000, .rflags = 2 };
    ioctl(vcpu, KVM_SET_REGS, &g);
    int outs = 0;
    for (;;) {
        if (ioctl(vcpu, KVM_RUN, 0)) { perror("run"); return 1; }
        if (run->exit_reason == KVM_EXIT_IO) { outs++; continue; }
        if (run->exit_reason == KVM_EXIT_HLT) { printf("L2 halted after %d OUTs\n", outs); break; }
        ioctl(vcpu, KVM_GET_REGS, &g);
        printf("L2: exit %d (fail %llx, sub %u) rip %llx after %d OUTs\n", run->exit_reason, (unsigned long long)run->fail_entry.hardware_entry_failure_reason, run->internal.suberror, g.rip, outs);
        return 1;
    }
    return 0;
}
