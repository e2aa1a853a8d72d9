package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// lostFound is the directory that mkfs makes in a new ext filesystem, and fsck makes again if it needs it.
const lostFound = "lost+found"

// emptied has the volume of a claim that docker has made be as empty as a volume of docker's own driver is: docker
// copies an image's files into an empty volume only, and data bases make their files in no other.
func (d *Door) emptied(ctx context.Context, path string) error {
	ended := make(chan error, 1)
	go func() { ended <- d.empty(path) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errors.New("the filesystem does not answer")
	}
}

// emptyNew removes the directory lost+found, if there is nothing else in an ext filesystem, and nothing in it.
func emptyNew(path string) error {
	point, _, err := mount.At(path)
	if err != nil || point.ReadOnly || !strings.HasPrefix(point.Type, "ext") {
		return err
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("read the volume: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(2)
	if err != nil || len(names) != 1 || names[0] != lostFound {
		// An error is the end of the directory, or one that a container will see as well.
		return nil //nolint:nilerr // see above
	}
	err = unix.Unlinkat(int(dir.Fd()), lostFound, unix.AT_REMOVEDIR)
	for _, harmless := range []error{nil, fs.ErrNotExist, unix.ENOTEMPTY, unix.EROFS} {
		if errors.Is(err, harmless) {
			return nil
		}
	}
	return fmt.Errorf("remove %s from the new volume: %w", lostFound, err)
}
