#!/usr/bin/env python3
"""The driver that `volplane driver init` writes, but for its mounts, which a program of others serves by FUSE.

The variable FUSE names the program. As drivers of that kind do, it starts the program and does not wait for it, unless
the program itself ends only when it has mounted.
"""
import os
import subprocess

import driver


def mounts_of(volume):
    """Return where a volume is mounted, and whether it is read-only there.

    What is mounted is called as the volume, or as its directory: bindfs insists on that.
    """
    found = []
    with open('/proc/self/mountinfo', encoding='utf-8', errors='surrogateescape') as table:
        for line in table:
            point, _, filesystem = line.rstrip('\n').partition(' - ')
            fields, (kind, source, _) = point.split(' '), filesystem.split(' ')
            if kind.startswith('fuse') and os.path.basename(source) == volume:
                found.append((fields[4], 'ro' in fields[5].split(',')))
    return found


def unmount(volume, path):
    """Unmount a volume from a path, also if its program is dead, and remove the directory."""
    for point, _ in mounts_of(volume):
        if point == path:
            driver.run('umount', '--no-canonicalize', '--', path)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass


class Driver(driver.Driver):
    """A driver whose volumes are shown by FUSE."""

    def bind(self, volume, target, read_only):
        program, home = os.environ['FUSE'], self.home(volume)
        options = ['fsname=' + volume] + (['ro'] if read_only else [])
        if program == 'bindfs':
            # It takes no `--`.
            driver.run('bindfs', '-o', ','.join(options), home, target)
        elif program == 's3fs':
            options += ['url=' + os.environ['S3'], 'use_path_request_style']
            driver.run('s3fs', volume, target, '-o', ','.join(options))
        else:
            command = ['rclone', 'mount', '--config=/dev/null', '--devname=' + volume, '--dir-cache-time=0']
            command += ['--read-only'] if read_only else []
            subprocess.Popen(command + ['--', home, target], stdin=subprocess.DEVNULL, start_new_session=True)


driver.mounts_of, driver.unmount, driver.Driver = mounts_of, unmount, Driver
driver.main()
