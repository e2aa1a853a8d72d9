package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// inUse keeps the Node's volumesInUse: the promise to the attach/detach
// controller that a volume is mounted or about to be. Changes that come
// together travel in one patch.
type inUse struct {
	client kubernetes.Interface
	node   string
	// wrote receives the Node that the API answered, whose volumesAttached is
	// newer than what any cache tells.
	wrote func(*corev1.Node)
	wake  chan struct{}

	mu sync.Mutex
	// want is what shall be written, written what the API has confirmed.
	want, written map[corev1.UniqueVolumeName]bool
	waiting       []chan error
}

func newInUse(client kubernetes.Interface, node string, wrote func(*corev1.Node)) *inUse {
	return &inUse{
		client: client, node: node, wrote: wrote, wake: make(chan struct{}, 1),
		want: map[corev1.UniqueVolumeName]bool{}, written: map[corev1.UniqueVolumeName]bool{},
	}
}

// start takes over what the Node says and what must be in it at least. What
// the Node says beyond that is taken out by those who find it unwanted.
func (u *inUse) start(now, needed []corev1.UniqueVolumeName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range now {
		u.want[n], u.written[n] = true, true
	}
	for _, n := range needed {
		u.want[n] = true
	}
	u.poke()
}

// again writes everything once more, after the Node was made anew.
func (u *inUse) again() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.written = map[corev1.UniqueVolumeName]bool{}
	u.poke()
}

// names returns what is or may be in volumesInUse.
func (u *inUse) names() []corev1.UniqueVolumeName {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := maps.Clone(u.written)
	maps.Copy(all, u.want)
	return slices.Collect(maps.Keys(all))
}

// has says whether the API has confirmed the mark and it shall stay.
func (u *inUse) has(n corev1.UniqueVolumeName) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.want[n] && u.written[n]
}

// mayHave says whether the API may have the mark.
func (u *inUse) mayHave(n corev1.UniqueVolumeName) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.want[n] || u.written[n]
}

// set marks or unmarks a volume and returns when the API has confirmed it. It
// may be repeated; after an error the mark may be there or not.
func (u *inUse) set(ctx context.Context, n corev1.UniqueVolumeName, used bool) error {
	u.mu.Lock()
	if used {
		u.want[n] = true
	} else {
		delete(u.want, n)
	}
	answer := make(chan error, 1)
	u.waiting = append(u.waiting, answer)
	u.poke()
	u.mu.Unlock()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *inUse) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *inUse) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		}
		u.write(ctx)
	}
}

func (u *inUse) write(ctx context.Context) {
	u.mu.Lock()
	want, waiting := maps.Clone(u.want), u.waiting
	same := maps.Equal(want, u.written)
	u.waiting = nil
	u.mu.Unlock()
	var err error
	if !same {
		err = u.patch(ctx, slices.Sorted(maps.Keys(want)))
		if err == nil {
			u.mu.Lock()
			u.written = want
			u.mu.Unlock()
		}
	}
	for _, w := range waiting {
		w <- err
	}
}

func (u *inUse) patch(ctx context.Context, names []corev1.UniqueVolumeName) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"volumesInUse": names}})
	if err != nil {
		return fmt.Errorf("write volumes in use of node %s: %w", u.node, err)
	}
	node, err := u.client.CoreV1().Nodes().Patch(ctx, u.node, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write volumes in use of node %s: %w", u.node, err)
	}
	u.wrote(node)
	return nil
}
