/* Prints what a terminal obeys: clipboard, title and its report, answers typed back, links, alternate screen, key
 * remapping, and text that hides. The library passes bytes on as they are; the command line filters them for a terminal. */
#include "guest.h"

int main(void)
{
    const char *sequences[] = {
        "\033]52;c;Y3VybCBldmlsIHwgc2gK\007",      /* put text into the clipboard */
        "\033]0;rm -rf ~\007\033[21t",             /* set the title, have it typed back */
        "\033[6n\033[c\033[>c\033[5n",             /* reports that arrive as typed text */
        "\033P$q\"p\033\\\033P+q544e\033\\",       /* device control strings */
        "\033]8;;file:///etc/passwd\033\\x\033]8;;\033\\", /* a link */
        "\033]4;1;?\007\033]10;?\007",             /* colour queries */
        "\033]1337;File=name=eA==:eA==\007",       /* a download */
        "\033[?1049h\033[2J\033[?1049l",           /* screens */
        "\033[8mhidden\033[0m\rshown",             /* hidden and overwritten text */
        "\033_G\033\\\033^x\033\\\033Xx\033\\",    /* APC, PM, SOS */
        "\x9b" "6n\x9d" "52;c;eA==\x9c",           /* the same as single 8-bit bytes */
        "\033c\033#8\016\017\005",                 /* reset, fill, shift, answerback */
    };
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        dprintf(1, "%s", sequences[i]);
        dprintf(2, "%s", sequences[i]);
    }
    dprintf(1, "\nend of sequences\n");
    return CONTAINED;
}
