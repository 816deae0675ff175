/* Process 1 of the guest: loads the kernel's modules, mounts the root file system with version 2 of control groups only, runs
 * /run/v2/script.sh with the VM's port as output, and reboots, which stops the VM. Prints failures on the console. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORTS "/sys/class/virtio-ports"

static void end(void)
{
    sync();
    reboot(RB_AUTOBOOT);
    for (;;)
        pause();
}

static void must(int result, const char *what)
{
    if (result >= 0)
        return;
    fprintf(stderr, "v2: %s: %s\n", what, strerror(errno));
    end();
}

static void load_modules(void)
{
    char name[256], path[512];
    FILE *list = fopen("/modules/list", "r");
    while (list && fgets(name, sizeof name, list)) {
        name[strcspn(name, "\n")] = 0;
        snprintf(path, sizeof path, "/modules/%s", name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST))
            fprintf(stderr, "v2: module %s: %s\n", name, strerror(errno));
        close(fd);
    }
}

static void mounted(const char *type, const char *place, unsigned long flags, const char *options)
{
    mkdir(place, 0755);
    must(mount(type, place, type, flags, options), place);
}

/* Opens the port with this name. */
static int open_port(const char *wanted)
{
    char path[512], name[128] = "";
    DIR *ports = opendir(PORTS);
    for (struct dirent *entry; ports && (entry = readdir(ports));) {
        snprintf(path, sizeof path, PORTS "/%s/name", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        if (!fgets(name, sizeof name, file))
            name[0] = 0;
        fclose(file);
        name[strcspn(name, "\n")] = 0;
        if (strcmp(name, wanted) == 0) {
            snprintf(path, sizeof path, "/dev/%s", entry->d_name);
            return open(path, O_RDWR | O_CLOEXEC);
        }
    }
    errno = ENODEV;
    return -1;
}

int main(void)
{
    mounted("proc", "/proc", 0, NULL);
    mounted("sysfs", "/sys", 0, NULL);
    load_modules();
    mounted("devtmpfs", "/dev", 0, NULL);
    int root = -1;
    for (int tries = 0; tries < 600 && root < 0; tries++) {
        root = mount("/dev/vda", "/root", "ext4", MS_RDONLY, NULL);
        usleep(root < 0 ? 100000 : 0);
    }
    must(root, "mount the root file system");
    mounted("devtmpfs", "/root/dev", 0, NULL);
    mounted("tmpfs", "/root/dev/shm", 0, "mode=1777");
    mounted("devpts", "/root/dev/pts", 0, "ptmxmode=0666");
    mounted("proc", "/root/proc", 0, NULL);
    mounted("sysfs", "/root/sys", 0, NULL);
    mounted("cgroup2", "/root/sys/fs/cgroup", 0, NULL);
    mounted("tmpfs", "/root/tmp", 0, "mode=1777");
    mounted("tmpfs", "/root/run", 0, "mode=0755");
    mkdir("/root/run/v2", 0755);
    must(mount("/v2", "/root/run/v2", NULL, MS_BIND, NULL), "show the test's files");
    must(mount("/v2/guests", "/root/usr/local/bin", NULL, MS_BIND, NULL), "show the hostile programs");
    int port = open_port("cofferdam.test");
    must(port, "open the port");
    must(chdir("/root"), "enter the root file system");
    must(mount(".", "/", NULL, MS_MOVE, NULL), "move the root file system");
    must(chroot("."), "change the root");
    must(chdir("/"), "enter the root");
    pid_t child = fork();
    must(child, "fork");
    if (child == 0) {
        setsid();
        dup2(port, 1);
        dup2(port, 2);
        execl("/bin/sh", "sh", "/run/v2/script.sh", NULL);
        must(-1, "start the script");
    }
    int status;
    for (pid_t pid; (pid = wait(&status)) != child;)
        must(pid, "wait for the script");
    dprintf(port, "\n@@end %d\n", status);
    end();
}
