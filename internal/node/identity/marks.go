package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/process/lifecycle"
)

// Marks maintain the Node's volumesInUse, which shows the attach/detach controller that a volume is mounted or about to
// be. Concurrent changes share a patch.
type Marks struct {
	client kubernetes.Interface
	node   string
	// wrote receives the Node that the API returned, whose volumesAttached is newer than that of any cache.
	wrote func(*corev1.Node)
	// wake starts a write.
	wake chan struct{}

	mu sync.Mutex
	// desired are the entries that the Node should have, confirmed those that it has, and possible those that it may have:
	// after a write without an answer, it has the old or the new ones.
	desired, confirmed, possible map[corev1.UniqueVolumeName]bool
	// waiting receive the result of the next write.
	waiting []chan error
	// generation counts how often all entries had to be written again.
	generation int
}

var errNodeRecreated = errors.New("the node was created again or edited in the meantime")

func newMarks(client kubernetes.Interface, node string, wrote func(*corev1.Node)) *Marks {
	return &Marks{
		client: client, node: node, wrote: wrote, wake: make(chan struct{}, 1),
		desired: map[corev1.UniqueVolumeName]bool{}, confirmed: map[corev1.UniqueVolumeName]bool{},
		possible: map[corev1.UniqueVolumeName]bool{},
	}
}

// Start takes over the entries of the Node, and adds those that are needed. An entry that is not needed stays until its
// volume is reconciled.
func (m *Marks) Start(now, needed []corev1.UniqueVolumeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range now {
		m.desired[n], m.confirmed[n], m.possible[n] = true, true, true
	}
	for _, n := range needed {
		m.desired[n] = true
	}
	lifecycle.Wake(m.wake)
}

// rewrite writes all entries again, after the Node was created again or edited. A write that is in
// flight may have changed the old Node.
func (m *Marks) rewrite() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.generation++
	m.confirmed = map[corev1.UniqueVolumeName]bool{}
	lifecycle.Wake(m.wake)
}

// resync writes all entries again if the Node's entries differ from the last write, because the Node was edited.
func (m *Marks) resync(says []corev1.UniqueVolumeName) {
	m.mu.Lock()
	now := map[corev1.UniqueVolumeName]bool{}
	for _, n := range says {
		now[n] = true
	}
	edited := !maps.Equal(now, m.confirmed)
	if edited {
		maps.Copy(m.possible, now)
	}
	m.mu.Unlock()
	if edited {
		m.rewrite()
	}
}

// Names returns the volumes that are or may be in volumesInUse.
func (m *Marks) Names() []corev1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.possible)
	maps.Copy(all, m.desired)
	return slices.Collect(maps.Keys(all))
}

// Has says whether the API has confirmed the entry and it shall stay.
func (m *Marks) Has(n corev1.UniqueVolumeName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.desired[n] && m.confirmed[n]
}

// MayHave says whether the API may have the entry.
func (m *Marks) MayHave(n corev1.UniqueVolumeName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.desired[n] || m.possible[n]
}

// Set adds or removes an entry and returns when the API has confirmed it. It may be repeated; after an
// error the entry may exist or not.
func (m *Marks) Set(ctx context.Context, n corev1.UniqueVolumeName, used bool) error {
	m.mu.Lock()
	if used {
		m.desired[n] = true
	} else {
		delete(m.desired, n)
	}
	answer := make(chan error, 1)
	m.waiting = append(m.waiting, answer)
	lifecycle.Wake(m.wake)
	m.mu.Unlock()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// After a write, the next one waits restPerEntry for each entry of the Node, but at most longestRest: a write costs as
// much as there are entries, and is to report the changes of many volumes.
const restPerEntry, longestRest = 500 * time.Microsecond, 50 * time.Millisecond

func (m *Marks) run(ctx context.Context) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		rest.Reset(min(time.Duration(m.write(ctx))*restPerEntry, longestRest))
	}
}

// write writes the entries if they have changed, and returns how many it has written.
func (m *Marks) write(ctx context.Context) (entries int) {
	m.mu.Lock()
	want, waiting, doubts := maps.Clone(m.desired), m.waiting, m.generation
	same := maps.Equal(want, m.confirmed) && maps.Equal(want, m.possible)
	m.waiting = nil
	m.mu.Unlock()
	var err error
	if !same {
		entries = len(want)
		err = m.recordResult(want, doubts, m.patch(ctx, slices.Sorted(maps.Keys(want))))
	}
	for _, w := range waiting {
		w <- err
	}
	return entries
}

// recordResult stores the result of a write. After an error the API may have the old or the new entries.
func (m *Marks) recordResult(want map[corev1.UniqueVolumeName]bool, doubts int, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.generation != doubts:
		maps.Copy(m.possible, want)
		return errors.Join(err, errNodeRecreated)
	case err != nil:
		maps.Copy(m.possible, want)
		maps.DeleteFunc(m.confirmed, func(n corev1.UniqueVolumeName, _ bool) bool { return !want[n] })
		return err
	}
	m.confirmed, m.possible = want, maps.Clone(want)
	return nil
}

func (m *Marks) patch(ctx context.Context, names []corev1.UniqueVolumeName) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"volumesInUse": names}})
	if err != nil {
		return fmt.Errorf("write volumes in use of node %s: %w", m.node, err)
	}
	node, err := m.client.CoreV1().Nodes().Patch(ctx, m.node, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write volumes in use of node %s: %w", m.node, err)
	}
	m.wrote(node)
	return nil
}
