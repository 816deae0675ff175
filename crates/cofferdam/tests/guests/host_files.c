/* Reads what belongs to the host: password hashes, keys, home directories, logs, and marker files that the harness
 * put on the host (their paths are the arguments). */
#include "guest.h"
#include <dirent.h>

static void must_not_read(const char *path)
{
    char buffer[4096];
    attempts++;
    if (slurp(path, buffer, sizeof buffer) > 0)
        escape_found("read %s", path);
}

/* Directories may be there (the way to an interpreter's own prefix); a file beside them is the user's own. */
static void must_hold_no_file(const char *directory)
{
    char path[4096];
    DIR *stream = opendir(directory);
    attempts++;
    if (stream == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (lstat(path, &info) == 0 && !S_ISDIR(info.st_mode) && !S_ISLNK(info.st_mode))
            escape_found("sees the host's %s", path);
    }
    closedir(stream);
}

int main(int argc, char **argv)
{
    const char *files[] = {
        "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/sudoers", "/etc/machine-id", "/etc/fstab",
        "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key", "/etc/krb5.keytab", "/etc/ssl/private/ssl-cert-snakeoil.key",
        "/root/.ssh/id_rsa", "/root/.ssh/authorized_keys", "/root/.bash_history", "/root/.bashrc", "/root/.profile",
        "/root/.cargo/credentials.toml", "/root/.docker/config.json", "/root/.netrc", "/root/.gitconfig",
        "/var/lib/dpkg/status", "/var/log/dpkg.log", "/var/log/wtmp", "/var/lib/systemd/random-seed",
        "/run/utmp", "/boot/grub/grub.cfg", "/.dockerenv",
    };
    const char *directories[] = {"/root", "/home", "/var", "/var/log", "/var/lib", "/var/tmp", "/var/mail", "/run", "/boot",
                                 "/mnt", "/media", "/srv", "/etc/ssh", "/etc/ssl/private", "/lost+found", "/host", "/oldroot",
                                 "/.old", "/old_root", "/.pivot"};
    /* An image is told apart: it has a list of its own packages. */
    int image = argc > 1 && strcmp(argv[1], "--image") == 0;
    for (int i = 1 + image; i < argc; i++)
        must_not_read(argv[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!image || strcmp(files[i], "/var/lib/dpkg/status") != 0)
            must_not_read(files[i]);
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        must_hold_no_file(directories[i]);
    return verdict();
}
