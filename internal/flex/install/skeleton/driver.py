#!/usr/bin/env python3
#[mount]
# skeleton: a FlexVolume driver that only mounts. Everything happens on the node,
# in mount and unmount.
#
# It needs the mount and umount of util-linux. Options of a volume:
#
#   size   how large (64Mi)
#
#[end]
#[attach]
# skeleton: a FlexVolume driver that attaches. A volume is a directory of a pool that
# all nodes share; one node at a time may have it.
#
# It needs the mount and umount of util-linux.
#
#[end]
# Try it with: sh test.sh
import json
import os
import re
import subprocess
import sys


class Failure(Exception):
    """What the driver answers. It must hold neither options nor secrets: other people read it."""


def mounted(path):
    """Say whether something is mounted at a directory. The mount table knows, nothing else."""
    with open('/proc/self/mountinfo', encoding='utf-8', errors='surrogateescape') as table:
        points = [line.split(' ')[4] for line in table]
    return re.sub(r'[ \t\n\\]', lambda c: '\\%03o' % ord(c.group()), path) in points


def run(*command):
    """Run a program. What it prints becomes the message if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise Failure(done.stdout.decode(errors='replace').strip() or command[0] + ' failed')


def options(argument):
    """Read the JSON argument."""
    try:
        read = json.loads(argument)
    except ValueError as e:
        raise Failure('the argument is no JSON') from e
    if not isinstance(read, dict):
        raise Failure('the argument is no JSON object')
    return read


#[mount]
def mount(path, argument):
    """Mount the volume at a directory, or nothing. It may be called again when it is mounted."""
    if mounted(path):
        return {'message': 'it is mounted already'}
    read = options(argument)
    # Options are written by whoever writes a Pod, and this program is root: check each one before
    # it is used. A secret is base64.b64decode(read['kubernetes.io/secret/KEY']).
    size = read.get('size') or '16M'
    if not isinstance(size, str) or not re.fullmatch(r'[0-9]{1,12}([KMG]i?)?', size):
        raise Failure('option size: want a number with Ki, Mi or Gi')
    group = read.get('kubernetes.io/mounterArgs.FsGroup') or read.get('kubernetes.io/fsGroup') or ''
    if not re.fullmatch(r'[0-9]*', group):
        raise Failure('the fsGroup is no number')
    mode = 'ro' if read.get('kubernetes.io/readwrite') == 'ro' else 'rw'
    access = 'mode=2770,gid=' + group if group else 'mode=0777'

    # Here your storage comes in. What mounts it must be done, or have failed, when this program
    # ends: a process that stays must not keep its standard output.
    os.makedirs(path, exist_ok=True)
    run('mount', '-t', 'tmpfs', '-o', f'{mode},nosuid,nodev,size={size.rstrip("i")},{access}', '--', 'skeleton', path)
    return {}


#[end]
#[attach]
# Where the volumes are. Only the test sets POOL: hosts pass no such variable.
POOL = os.environ.get('POOL', '/var/lib/skeleton-pool')


def component(name):
    """Refuse what is not one component of a path."""
    if not isinstance(name, str) or not re.fullmatch(r'[A-Za-z0-9_][A-Za-z0-9._-]*', name):
        raise Failure('the name of a volume or node is not valid')
    return name


def home(argument):
    """Return the directory of a volume."""
    return os.path.join(POOL, component(options(argument).get('kubernetes.io/pvOrVolumeName')))


def owner(volume):
    """Return the node that has a volume, if there is one."""
    try:
        with open(os.path.join(volume, 'node'), encoding='utf-8') as f:
            return f.read()
    except FileNotFoundError:
        return ''


def attach(argument, node):
    """Here your storage comes in. It runs on the control plane."""
    volume, data = home(argument), os.path.join(home(argument), 'data')
    draft = os.path.join(volume, '.' + component(node))
    os.makedirs(data, exist_ok=True)
    # Of two nodes that attach at once, one fails: a link is made or not.
    with open(draft, 'w', encoding='utf-8') as f:
        f.write(node)
    try:
        os.link(draft, os.path.join(volume, 'node'))
    except FileExistsError:
        pass
    os.unlink(draft)
    if owner(volume) != node:
        raise Failure('another node has the volume')
    return {'device': data}


def isattached(argument, node):
    """Say whether a node has the volume."""
    return {'attached': owner(home(argument)) == node}


def waitforattach(_device, argument):
    """Return the device. It runs on the node, and the device that it is given may be empty."""
    data = os.path.join(home(argument), 'data')
    if not os.path.isdir(data):
        raise Failure('the volume is not attached')
    return {'device': data}


def mountdevice(path, _device, argument):
    """Mount once for the node. The host binds it for each Pod, because mount is Not supported."""
    if mounted(path):
        return {'message': 'it is mounted already'}
    os.makedirs(path, exist_ok=True)
    run('mount', '--bind', '--', os.path.join(home(argument), 'data'), path)
    return {}


def detach(name, node):
    """Detach by the name only: there are no options. What another node has stays with it."""
    volume = os.path.join(POOL, component(name))
    if owner(volume) == node:
        os.unlink(os.path.join(volume, 'node'))
    return {}


#[end]
def unmount(path):
    """Unmount: what is not mounted is done. Nothing but the path is known, also after a restart."""
    while mounted(path):
        run('umount', '--', path)
    # Only an empty directory goes.
    try:
        os.rmdir(path)
    except OSError:
        pass
    return {}


def init():
    """Answer at once and change nothing: it runs whenever this file changes."""
    return {'capabilities': {
        #[mount]
        'attach': False, 'selinuxRelabel': True, 'supportsMetrics': True, 'fsGroup': True, 'requiresFSResize': False,
        #[end]
        #[attach]
        'attach': True, 'selinuxRelabel': True, 'supportsMetrics': True, 'fsGroup': True, 'requiresFSResize': False,
        #[end]
    }}


OPERATIONS = {
    ('init', 0): init,
    #[mount]
    ('mount', 2): mount,
    ('unmount', 1): unmount,
    #[end]
    #[attach]
    ('attach', 2): attach,
    ('isattached', 2): isattached,
    ('waitforattach', 2): waitforattach,
    ('mountdevice', 3): mountdevice,
    ('unmountdevice', 1): unmount,
    ('detach', 2): detach,
    #[end]
}


def main():
    """Print exactly one JSON object, whatever happens, and nothing to standard error."""
    op = sys.argv[1] if len(sys.argv) > 1 else ''
    do = OPERATIONS.get((op, len(sys.argv) - 2))
    if do is None:
        answer = {'status': 'Not supported'}
    else:
        try:
            answer = {'status': 'Success', **do(*sys.argv[2:])}
        except Failure as e:
            answer = {'status': 'Failure', 'message': f'skeleton {op}: {e}'}
        except Exception as e:  # pylint: disable=broad-except
            answer = {'status': 'Failure', 'message': f'skeleton {op}: {type(e).__name__}'}
    print(json.dumps(answer))
    sys.exit(0 if answer['status'] == 'Success' else 1)


main()
