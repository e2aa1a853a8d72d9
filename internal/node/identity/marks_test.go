package identity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// lossyMarks write volumesInUse, over an API whose answers to patches get
// lost while lost is set: before or after the work is done.
type lossyMarks struct {
	*Marks
	t      *testing.T
	client *fake.Clientset
	lost   string
}

func newLossyMarks(t *testing.T) *lossyMarks {
	t.Helper()
	m := &lossyMarks{t: t, client: clientset.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})}
	m.client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if m.lost == "" {
			return false, nil, nil
		}
		if p := a.(clienttesting.PatchActionImpl); m.lost == "after" {
			// What gets lost here is that nothing is in use any more.
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			if err := m.client.Tracker().Update(p.GetResource(), node, ""); err != nil {
				t.Error(err)
			}
		}
		return true, nil, errors.New("the answer got lost")
	})
	m.Marks = newMarks(m.client, "n1", func(*corev1.Node) {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); m.run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

func (m *lossyMarks) said() int {
	m.t.Helper()
	node, err := m.client.CoreV1().Nodes().Get(m.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return len(node.Status.VolumesInUse)
}

// TestMarkAfterALostAnswer: a mark is taken away, nobody knows whether that came
// about, and the volume is wanted again. What is marked then is written, or
// a volume would be mounted that may be detached; and a mark that is not wanted
// may still be there, until its end is confirmed.
func TestMarkAfterALostAnswer(t *testing.T) {
	const n = corev1.UniqueVolumeName("kubernetes.io/csi/d^h")
	for _, lost := range []string{"before", "after"} {
		t.Run(lost, func(t *testing.T) {
			m := newLossyMarks(t)
			for i, step := range []struct {
				used bool
				lost string
				// has and may are what is known then, says what the Node says if it
				// is.
				has, may bool
				says     int
			}{
				{used: true, has: true, may: true, says: 1},
				{used: false, lost: lost, may: true},
				{used: true, has: true, may: true, says: 1},
				{used: false, lost: lost, may: true},
				{used: false},
			} {
				m.lost = step.lost
				err := m.Set(t.Context(), n, step.used)
				if (err != nil) != (step.lost != "") || m.Has(n) != step.has || m.MayHave(n) != step.may {
					t.Errorf("step %d: %v, is there %v, may be there %v", i, err, m.Has(n), m.MayHave(n))
				}
				if says := m.said(); err == nil && says != step.says {
					t.Errorf("step %d: the Node says that it uses %d volumes, want %d", i, says, step.says)
				}
			}
		})
	}
}

// TestNodeMadeAnewDuringAWrite: what was written to a Node that is gone is not
// believed of the one that was made in its place.
func TestNodeMadeAnewDuringAWrite(t *testing.T) {
	const n = corev1.UniqueVolumeName("kubernetes.io/csi/d^h")
	m := newLossyMarks(t)
	once := false
	m.wrote = func(*corev1.Node) {
		if once {
			return
		}
		once = true
		// It was written; before that is known here the Node is another one.
		if _, err := m.client.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType,
			[]byte(`{"status":{"volumesInUse":null}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Error(err)
		}
		m.rewrite()
	}
	if err := m.Set(t.Context(), n, true); !errors.Is(err, errNodeRecreated) {
		t.Errorf("%v: the Node that is there now may not say it", err)
	}
	kubetest.Eventually(t, func() string {
		if !m.Has(n) || m.said() != 1 {
			return "the Node does not say that it uses the volume"
		}
		return ""
	})
}

// TestMarkIsEdited: what somebody takes out, or puts in, is as it was a moment
// later.
func TestMarkIsEdited(t *testing.T) {
	const n = corev1.UniqueVolumeName("kubernetes.io/csi/d^h")
	m := newLossyMarks(t)
	if err := m.Set(t.Context(), n, true); err != nil {
		t.Fatal(err)
	}
	for _, edit := range []string{`[]`, `["kubernetes.io/csi/d^h","kubernetes.io/csi/d^other"]`} {
		node, err := m.client.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType,
			[]byte(`{"status":{"volumesInUse":`+edit+`}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
		m.resync(node.Status.VolumesInUse)
		kubetest.Eventually(t, func() string {
			if !m.Has(n) || m.said() != 1 {
				return "the Node does not say what is in use"
			}
			return ""
		})
	}
}

// TestMarksOfManyVolumes: after a write of many entries, the next one waits, and has the changes of all volumes since.
func TestMarksOfManyVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLossyMarks(t)
		var all []corev1.UniqueVolumeName
		for i := range 100 {
			all = append(all, corev1.UniqueVolumeName(fmt.Sprint("kubernetes.io/csi/d^", i)))
		}
		m.Start(nil, all)
		begin := time.Now()
		var done sync.WaitGroup
		for _, n := range all[:10] {
			synctest.Wait()
			done.Go(func() {
				if err := m.Set(t.Context(), n, false); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
		writes := 0
		for _, a := range m.client.Actions() {
			if a.GetVerb() == "patch" {
				writes++
			}
		}
		if took := time.Since(begin); m.said() != 90 || writes != 2 || took != longestRest {
			t.Errorf("%d entries after %d writes and %v, want 90 after 2 and %v", m.said(), writes, took, longestRest)
		}
	})
}
