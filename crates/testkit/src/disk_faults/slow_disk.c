/* Slow disk: each fsync takes longer by the milliseconds in the file that SLOW_DISK names. Each delayed call appends a byte to the file
   that SLOW_DISK_WAITS names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void delay_sync(void)
{
    const char *file = getenv("SLOW_DISK");
    char text[16] = {0};
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    long ms = read(fd, text, sizeof text - 1) > 0 ? atol(text) : 0;
    close(fd);
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    const char *waits = ms > 0 ? getenv("SLOW_DISK_WAITS") : NULL;
    int count = waits ? open(waits, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (count >= 0) {
        if (write(count, ".", 1) < 0)
            abort();
        close(count);
    }
    nanosleep(&time, NULL);
}

int fsync(int fd)
{
    delay_sync();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    delay_sync();
    return (int)syscall(SYS_fdatasync, fd);
}
