package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Marks keep the Node's volumesInUse: the promise to the attach/detach
// controller that a volume is mounted or about to be. Changes that come
// together travel in one patch.
type Marks struct {
	client kubernetes.Interface
	node   string
	// wrote receives the Node that the API answered, whose volumesAttached is
	// newer than what any cache tells.
	wrote func(*corev1.Node)
	wake  chan struct{}

	mu sync.Mutex
	// want is what the Node shall say, sure what it says, and may what it may
	// say: the answer to a write can get lost, and then it says either.
	want, sure, may map[corev1.UniqueVolumeName]bool
	waiting         []chan error
	// doubts counts how often it has turned out that nothing is sure.
	doubts int
}

var errNodeAnew = errors.New("the node was made anew meanwhile")

func newMarks(client kubernetes.Interface, node string, wrote func(*corev1.Node)) *Marks {
	return &Marks{
		client: client, node: node, wrote: wrote, wake: make(chan struct{}, 1),
		want: map[corev1.UniqueVolumeName]bool{}, sure: map[corev1.UniqueVolumeName]bool{},
		may: map[corev1.UniqueVolumeName]bool{},
	}
}

// Start takes over what the Node says and what must be in it at least. What
// the Node says beyond that is taken out by those who find it unwanted.
func (m *Marks) Start(now, needed []corev1.UniqueVolumeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range now {
		m.want[n], m.sure[n], m.may[n] = true, true, true
	}
	for _, n := range needed {
		m.want[n] = true
	}
	m.poke()
}

// rewrite writes everything once more, after the Node was made anew. What is
// being written may have gone to the old one.
func (m *Marks) rewrite() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doubts++
	m.sure = map[corev1.UniqueVolumeName]bool{}
	m.poke()
}

// look writes everything once more if the Node says something else than was
// written: somebody has edited it.
func (m *Marks) look(says []corev1.UniqueVolumeName) {
	m.mu.Lock()
	now := map[corev1.UniqueVolumeName]bool{}
	for _, n := range says {
		now[n] = true
	}
	edited := !maps.Equal(now, m.sure)
	if edited {
		maps.Copy(m.may, now)
	}
	m.mu.Unlock()
	if edited {
		m.rewrite()
	}
}

// Names returns what is or may be in volumesInUse.
func (m *Marks) Names() []corev1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.may)
	maps.Copy(all, m.want)
	return slices.Collect(maps.Keys(all))
}

// Has says whether the API has confirmed the mark and it shall stay.
func (m *Marks) Has(n corev1.UniqueVolumeName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.want[n] && m.sure[n]
}

// MayHave says whether the API may have the mark.
func (m *Marks) MayHave(n corev1.UniqueVolumeName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.want[n] || m.may[n]
}

// Set marks or unmarks a volume and returns when the API has confirmed it. It
// may be repeated; after an error the mark may be there or not.
func (m *Marks) Set(ctx context.Context, n corev1.UniqueVolumeName, used bool) error {
	m.mu.Lock()
	if used {
		m.want[n] = true
	} else {
		delete(m.want, n)
	}
	answer := make(chan error, 1)
	m.waiting = append(m.waiting, answer)
	m.poke()
	m.mu.Unlock()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Marks) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Marks) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		m.write(ctx)
	}
}

func (m *Marks) write(ctx context.Context) {
	m.mu.Lock()
	want, waiting, doubts := maps.Clone(m.want), m.waiting, m.doubts
	same := maps.Equal(want, m.sure) && maps.Equal(want, m.may)
	m.waiting = nil
	m.mu.Unlock()
	var err error
	if !same {
		err = m.learn(want, doubts, m.patch(ctx, slices.Sorted(maps.Keys(want))))
	}
	for _, w := range waiting {
		w <- err
	}
}

// learn takes what came of a write.
func (m *Marks) learn(want map[corev1.UniqueVolumeName]bool, doubts int, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.doubts != doubts:
		maps.Copy(m.may, want)
		return errors.Join(err, errNodeAnew)
	case err != nil:
		maps.Copy(m.may, want)
		maps.DeleteFunc(m.sure, func(n corev1.UniqueVolumeName, _ bool) bool { return !want[n] })
		return err
	}
	m.sure, m.may = want, maps.Clone(want)
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
