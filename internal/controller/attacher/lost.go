package attacher

import (
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/attach"
)

// lost holds the attachments that were deleted before their volumes were detached. It is lost at a
// restart; then compare finds those whose drivers can list what is attached.
type lost struct {
	mu sync.Mutex
	// all holds the last state of each attachment by name.
	all map[string]*storagev1.VolumeAttachment
}

// put adds an attachment, changed so that it requires a detach.
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

// remove drops the lost attachment of this name after a detach: a new attachment of the name is for
// the same volume and node. It returns the volume if va is the lost attachment itself, which has no
// finalizer to remove, and "" otherwise.
func (l *lost) remove(va *storagev1.VolumeAttachment) (volume string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	deleted, ok := l.all[va.Name]
	delete(l.all, va.Name)
	if !ok || deleted.UID != va.UID {
		return ""
	}
	return *va.Spec.Source.PersistentVolumeName
}

// of says whether a volume may still be attached by a lost attachment.
func (l *lost) of(volume string) bool {
	return len(l.filter(func(va *storagev1.VolumeAttachment) bool {
		return *va.Spec.Source.PersistentVolumeName == volume
	})) > 0
}

// list returns the lost attachments of a driver.
func (l *lost) list(driver string) []*storagev1.VolumeAttachment {
	return l.filter(func(va *storagev1.VolumeAttachment) bool { return va.Spec.Attacher == driver })
}

// on returns the lost attachments to a node.
func (l *lost) on(node string) []*storagev1.VolumeAttachment {
	return l.filter(func(va *storagev1.VolumeAttachment) bool { return va.Spec.NodeName == node })
}

func (l *lost) filter(keep func(*storagev1.VolumeAttachment) bool) []*storagev1.VolumeAttachment {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*storagev1.VolumeAttachment
	for _, va := range l.all {
		if keep(va) {
			out = append(out, va)
		}
	}
	return out
}
