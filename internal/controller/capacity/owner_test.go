package capacity

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestOwnerOf: each level is one owner further up; where an object has no controller, the error names that object.
func TestOwnerOf(t *testing.T) {
	object := func(name, kind, owner string) metav1.ObjectMeta {
		o := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}
		if kind != "" {
			o.OwnerReferences = []metav1.OwnerReference{
				{Kind: "Watcher", Name: "other", UID: "other"},
				{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: types.UID("uid-" + owner), Controller: ptr.To(true)},
			}
		}
		return o
	}
	client := clientset.New(
		&corev1.Pod{ObjectMeta: object("of-deployment", "ReplicaSet", "set")},
		&corev1.Pod{ObjectMeta: object("of-daemonset", "DaemonSet", "daemons")},
		&corev1.Pod{ObjectMeta: object("alone", "", "")},
		&corev1.Pod{ObjectMeta: object("of-lone-set", "ReplicaSet", "lone")},
		&appsv1.ReplicaSet{ObjectMeta: object("set", "Deployment", "deployment")},
		&appsv1.ReplicaSet{ObjectMeta: object("lone", "", "")},
	)
	for _, c := range []struct {
		pod   string
		level int
		want  string
	}{
		{"alone", 0, "Pod alone uid-alone"},
		{"of-deployment", 1, "ReplicaSet set uid-set"},
		{"of-deployment", 2, "Deployment deployment uid-deployment"},
		{"of-daemonset", 1, "DaemonSet daemons uid-daemons"},
		{"of-daemonset", 2, "DaemonSet ns/daemons has no controller"},
		{"alone", 1, "own Pod ns/alone has no controller"},
		{"of-lone-set", 2, "ReplicaSet ns/lone has no controller"},
		{"of-deployment", 3, "ReplicaSet ns/set has no controller"},
		{"gone", 0, "own Pod ns/gone"},
	} {
		var got string
		owner, err := Owner{Namespace: "ns", Pod: c.pod, Level: c.level}.find(t.Context(), client)
		if err != nil {
			got = err.Error()
		} else if got = owner.Kind + " " + owner.Name + " " + string(owner.UID); !ptr.Deref(owner.Controller, false) {
			t.Errorf("%s, level %d: it is no controller", c.pod, c.level)
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s, level %d: %q, want %q", c.pod, c.level, got, c.want)
		}
	}
}
