package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/mount"
)

// Inspection reads a pool, also while drivers serve it. It changes nothing.
type Inspection struct{ pool pool }

// Inspect returns the Inspection of an existing pool.
func Inspect(dir string) (*Inspection, error) {
	var about struct {
		ID string `json:"id"`
	}
	if err := durable.ReadJSON(filepath.Join(dir, "pool.json"), maxSmall, &about); err != nil {
		return nil, err
	}
	return &Inspection{pool{dir: dir, id: about.ID}}, nil
}

// Name returns the name with which a volume was created; "" if it is not known.
func (i *Inspection) Name(id string) string {
	r, err := i.pool.get(volumes, id)
	if err != nil || volumes.idOf(r.Name) != id {
		return ""
	}
	return r.Name
}

// Contents returns the type of a volume's filesystem, if this driver can make it, or whether
// nothing was ever written to the volume. An error says that this is not known.
func (i *Inspection) Contents(ctx context.Context, id string) (fsType string, blank bool, err error) {
	if _, err := i.pool.get(volumes, id); err != nil {
		return "", false, err
	}
	if i.pool.formatting(id) {
		return "", true, nil
	}
	image := i.pool.image(volumes, id)
	fsType, err = mount.Probe(ctx, image)
	if err != nil {
		return "", false, err
	}
	if _, unknown := mount.SmallestFS(fsType); unknown == nil {
		return fsType, false, nil
	}
	f, err := os.OpenFile(image, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return "", err == nil, err
	}
	// The image is sparse: blocks that were never written are holes.
	_, err = unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return "", true, nil
	}
	return "", false, err
}
