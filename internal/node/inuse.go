package node

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
	// want is what the Node shall say, sure what it says, and may what it may
	// say: the answer to a write can get lost, and then it says either.
	want, sure, may map[corev1.UniqueVolumeName]bool
	waiting         []chan error
	// doubts counts how often it has turned out that nothing is sure.
	doubts int
}

var errNodeAnew = errors.New("the node was made anew meanwhile")

func newInUse(client kubernetes.Interface, node string, wrote func(*corev1.Node)) *inUse {
	return &inUse{
		client: client, node: node, wrote: wrote, wake: make(chan struct{}, 1),
		want: map[corev1.UniqueVolumeName]bool{}, sure: map[corev1.UniqueVolumeName]bool{}, may: map[corev1.UniqueVolumeName]bool{},
	}
}

// start takes over what the Node says and what must be in it at least. What
// the Node says beyond that is taken out by those who find it unwanted.
func (u *inUse) start(now, needed []corev1.UniqueVolumeName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range now {
		u.want[n], u.sure[n], u.may[n] = true, true, true
	}
	for _, n := range needed {
		u.want[n] = true
	}
	u.poke()
}

// again writes everything once more, after the Node was made anew. What is
// being written may have gone to the old one.
func (u *inUse) again() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.doubts++
	u.sure = map[corev1.UniqueVolumeName]bool{}
	u.poke()
}

// look writes everything once more if the Node says something else than was
// written: somebody has edited it.
func (u *inUse) look(says []corev1.UniqueVolumeName) {
	u.mu.Lock()
	now := map[corev1.UniqueVolumeName]bool{}
	for _, n := range says {
		now[n] = true
	}
	edited := !maps.Equal(now, u.sure)
	if edited {
		maps.Copy(u.may, now)
	}
	u.mu.Unlock()
	if edited {
		u.again()
	}
}

// names returns what is or may be in volumesInUse.
func (u *inUse) names() []corev1.UniqueVolumeName {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := maps.Clone(u.may)
	maps.Copy(all, u.want)
	return slices.Collect(maps.Keys(all))
}

// has says whether the API has confirmed the mark and it shall stay.
func (u *inUse) has(n corev1.UniqueVolumeName) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.want[n] && u.sure[n]
}

// mayHave says whether the API may have the mark.
func (u *inUse) mayHave(n corev1.UniqueVolumeName) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.want[n] || u.may[n]
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
	want, waiting, doubts := maps.Clone(u.want), u.waiting, u.doubts
	same := maps.Equal(want, u.sure) && maps.Equal(want, u.may)
	u.waiting = nil
	u.mu.Unlock()
	var err error
	if !same {
		err = u.learn(want, doubts, u.patch(ctx, slices.Sorted(maps.Keys(want))))
	}
	for _, w := range waiting {
		w <- err
	}
}

// learn takes what came of a write.
func (u *inUse) learn(want map[corev1.UniqueVolumeName]bool, doubts int, err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.doubts != doubts:
		maps.Copy(u.may, want)
		return errors.Join(err, errNodeAnew)
	case err != nil:
		maps.Copy(u.may, want)
		maps.DeleteFunc(u.sure, func(n corev1.UniqueVolumeName, _ bool) bool { return !want[n] })
		return err
	}
	u.sure, u.may = want, maps.Clone(want)
	return nil
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
