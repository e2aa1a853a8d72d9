package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestRepeatedEventHasTheNewestTry: an event that is repeated has the newest attempt and the next try, in the request
// that counts it.
func TestRepeatedEventHasTheNewestTry(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u"}}
	client := clientset.New(claim)
	events := NewNodeRecorder(t.Context(), client, "test", "n1")
	because := volume.Because{Reason: volume.ReasonProvisioningFailed, Message: "full", Next: volume.Driver("d")}
	for n := 1; n <= 3; n++ {
		events.WarnWith(claim, because, map[string]string{
			volume.AnnAttempt: fmt.Sprint(n), volume.AnnNextTry: fmt.Sprint("after ", n),
		})
	}
	testkit.Eventually(t, time.Minute, func() string {
		list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return fmt.Sprintf("%d events, %v", len(list.Items), err)
		}
		e := list.Items[0]
		if want := map[string]string{
			volume.AnnNext: "d", volume.AnnAttempt: "3", volume.AnnNextTry: "after 3",
		}; e.Source != (corev1.EventSource{Component: "volplane.dev/test", Host: "n1"}) || e.Count != 3 ||
			!maps.Equal(e.Annotations, want) {
			return fmt.Sprintf("the event is %d times, %v", e.Count, e.Annotations)
		}
		return ""
	})
	writes := 0
	for _, a := range client.Actions() {
		if a.GetVerb() != "list" {
			writes++
		}
	}
	if writes != 3 {
		t.Errorf("%d requests for three failures", writes)
	}
}

// TestManyFailures: even after many failures, an event's information about the attempts is not older than ten seconds.
func TestManyFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u"}}
		client := clientset.New(claim)
		events := NewNodeRecorder(t.Context(), client, "test", "n1")
		because := volume.Because{Reason: volume.ReasonProvisioningFailed, Message: "full", Next: volume.Driver("d")}
		fail := func(n int) int {
			events.WarnWith(claim, because, map[string]string{volume.AnnAttempt: fmt.Sprint(n)})
			synctest.Wait()
			list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Fatalf("%d events, %v", len(list.Items), err)
			}
			told, err := strconv.Atoi(list.Items[0].Annotations[volume.AnnAttempt])
			if err != nil {
				t.Fatal(err)
			}
			return told
		}
		for n := 1; n <= 100; n++ {
			fail(n)
		}
		<-time.After(10 * time.Second)
		if told := fail(101); told != 101 {
			t.Errorf("the event tells of attempt %d, not of the newest", told)
		}
	})
}

// TestBusyServer: an event that the API server could not write is sent again, and one that it refuses is not.
func TestBusyServer(t *testing.T) {
	for name, c := range map[string]struct {
		answer error
		sent   int
	}{
		"too busy":              {apierrors.NewTooManyRequests("later", 1), 3},
		"no quorum":             {apierrors.NewServiceUnavailable("the store has no quorum"), 3},
		"etcd is slow":          {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), 3},
		"a timeout":             {apierrors.NewTimeoutError("later", 1), 3},
		"the namespace is gone": {apierrors.NewNotFound(corev1.Resource("namespaces"), "ns"), 1},
		"the event is invalid":  {apierrors.NewBadRequest("no"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u"}}
				client, sent := clientset.New(claim), 0
				client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
					sent++
					return sent < 3, nil, c.answer
				})
				events := NewRecorder(t.Context(), client, "test")
				events.Warn(claim, volume.Because{Reason: volume.ReasonProvisioningFailed, Message: "full"})
				<-time.After(time.Minute)
				if sent != c.sent {
					t.Errorf("it was sent %d times, want %d", sent, c.sent)
				}
			})
		})
	}
}

// TestWarningNamesActor: kubectl shows no annotations of events, so the text of a warning ends with who acts next; it
// and a long message stay within what the API server takes.
func TestWarningNamesActor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u"}}
		client := clientset.New(claim)
		events := NewNodeRecorder(t.Context(), client, "test", "n1")
		cause := volume.Cause{Code: "Internal", Object: "pv/v1"}
		for _, c := range []struct {
			send          func(runtime.Object, volume.Because)
			message, want string
			next          volume.Actor
		}{
			{events.Warn, "disk on fire", "disk on fire (next: administrator of node n1)", volume.Administrator("n1")},
			{events.Warn, "nothing to do", "nothing to do", volume.Actor{}},
			{events.Note, "it waits", "it waits", volume.User()},
			{
				events.Warn, strings.Repeat("long", 300), strings.Repeat("long", 252) + "lon... (next: d)",
				volume.Driver("d"),
			},
		} {
			reason := volume.Reason(fmt.Sprint("Reason", len(client.Actions())))
			<-time.After(time.Second) // the name of an event is the time
			c.send(claim, volume.Because{Reason: reason, Message: c.message, Next: c.next, Cause: cause})
			synctest.Wait()
			list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(list.Items, func(e corev1.Event) bool { return e.Reason == string(reason) })
			if i < 0 || list.Items[i].Message != c.want {
				t.Fatalf("%d events of %d, want %q", i, len(list.Items), c.want)
			}
			notes := list.Items[i].Annotations
			if notes[volume.AnnNext] != c.next.String() || notes[volume.AnnCause] != `{"code":"Internal","object":"pv/v1"}` {
				t.Errorf("the annotations are %v", notes)
			}
		}
	})
}
