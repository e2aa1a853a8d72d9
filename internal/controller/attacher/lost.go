package attacher

import (
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/attach"
)

// lost are attachments that went away without a detach, by name, as they were.
// A restart forgets them; drivers that can tell what is attached remind us.
type lost struct {
	mu  sync.Mutex
	all map[string]*storagev1.VolumeAttachment
}

// put adds an attachment, as one that is to be detached.
func (l *lost) put(va *storagev1.VolumeAttachment) {
	c := attach.ToDetach(va, metav1.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]*storagev1.VolumeAttachment{}
	}
	l.all[c.Name] = c
}

func (l *lost) get(name string) (*storagev1.VolumeAttachment, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	va, ok := l.all[name]
	return va, ok
}

// found forgets what was lost of an attachment's name, after a detach from its
// node. It returns the volume if it is the lost attachment itself that was
// detached, which nobody needs to let go; else "".
func (l *lost) found(va *storagev1.VolumeAttachment) (volume string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, ok := l.all[va.Name]
	delete(l.all, va.Name)
	if !ok || was.UID != va.UID {
		return ""
	}
	return *va.Spec.Source.PersistentVolumeName
}

// of says whether a volume may still be attached by a lost attachment.
func (l *lost) of(volume string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, va := range l.all {
		if *va.Spec.Source.PersistentVolumeName == volume {
			return true
		}
	}
	return false
}

// list returns all lost attachments of a driver.
func (l *lost) list(driver string) []*storagev1.VolumeAttachment {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*storagev1.VolumeAttachment
	for _, va := range l.all {
		if va.Spec.Attacher == driver {
			out = append(out, va)
		}
	}
	return out
}
