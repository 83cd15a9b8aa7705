// The program of probe_main.c, as bytes.
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".globl tessera_probe_begin\n"
    ".hidden tessera_probe_begin\n"
    "tessera_probe_begin:\n"
    ".incbin \"" TESSERA_PROBE_FILE
    "\"\n"
    ".globl tessera_probe_end\n"
    ".hidden tessera_probe_end\n"
    "tessera_probe_end:\n"
    ".byte 0\n"
    ".previous\n");
