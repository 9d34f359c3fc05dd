/* A library with the name of NVIDIA's and a function, cuStreamWaitEvent, which does nothing: what a call takes is what
 * its hooks take. (Its sister is never called: bpftrace has a cheaper way for many functions than for one.) Built three
 * times, with -DPROLOGUE_PUSH, _COMPARE or _ENDBR: how a hook's cost depends on the instructions that a function begins
 * with. x86-64 only. */
#define BEGIN                                     \
    ".text\n"                                     \
    ".balign 16\n"                                \
    ".globl cuStreamWaitEvent\n"                  \
    ".type cuStreamWaitEvent, @function\n"        \
    "cuStreamWaitEvent:\n"
#define PUSH "push %rbp\n mov %rsp, %rbp\n xor %eax, %eax\n pop %rbp\n ret\n"
#define END ".size cuStreamWaitEvent, . - cuStreamWaitEvent\n"

#if defined PROLOGUE_PUSH
/* libcudart, libcuda 580 */
__asm__(BEGIN PUSH END);
#elif defined PROLOGUE_COMPARE
/* libcuda 535: is the library closed already? The kernel does not emulate the comparison. */
__asm__(".data\n"
        ".balign 4\n"
        "closed: .long 0\n" BEGIN
        "cmpl $0x321cba00, closed(%rip)\n"
        "je 1f\n" PUSH
        "1: mov $4, %eax\n"
        " ret\n" END);
#elif defined PROLOGUE_ENDBR
/* what compilers make with -fcf-protection */
__asm__(BEGIN "endbr64\n" PUSH END);
#else
#error one of the prologues
#endif
__asm__(".globl cuStreamWaitEvent_ptsz\n"
        ".type cuStreamWaitEvent_ptsz, @function\n"
        "cuStreamWaitEvent_ptsz:\n" PUSH
        ".size cuStreamWaitEvent_ptsz, . - cuStreamWaitEvent_ptsz\n");
__asm__(".section .note.GNU-stack,\"\",@progbits\n");
