package apiserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
)

// inlinePod is a Pod that names drivers itself: as a FlexVolume, and by the name
// of a CSI driver after "csi:".
func inlinePod(name string, drivers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	for _, driver := range drivers {
		v := corev1.Volume{Name: "v" + string(rune('a'+len(p.Spec.Volumes)))}
		if csi, is := strings.CutPrefix(driver, "csi:"); is {
			v.CSI = &corev1.CSIVolumeSource{Driver: csi}
		} else {
			v.FlexVolume = &corev1.FlexVolumeSource{Driver: driver, Options: map[string]string{"path": "/etc"}}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return p
}

// TestWhoNamesDriversInPods: a FlexVolume driver that a Pod names inline, by either of its names, requires the right to
// use it; an administrator has it, and a role in the Pod's namespace grants it.
func TestWhoNamesDriversInPods(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	grant(t, admin)
	mayUse(t, admin, "example.com/allowed")
	user := standalonetest.Client(t, s, "someone")
	csiDrivers(t, admin)
	create := func(c kubernetes.Interface, p *corev1.Pod) error {
		_, err := c.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return create(user, inlinePod("allowed", "example.com/allowed")) == nil, nil
	})
	if err != nil {
		t.Fatalf("with the right: %v", err)
	}
	for name, c := range map[string]struct {
		drivers []string
		needs   string
	}{
		"plain":          {nil, ""},
		"another":        {[]string{"example.com/other"}, "example.com/other"},
		"beside":         {[]string{"example.com/allowed", "example.com/other"}, "example.com/other"},
		"no-name":        {[]string{"../x"}, "../x"},
		"allowed-as-csi": {[]string{"csi:allowed.example.com"}, ""},
		"absent-as-csi":  {[]string{"csi:other.example.com"}, "example.com/other"},
		"ours-as-csi":    {[]string{"csi:made.example.com"}, "example.com/made"},
		"csi":            {[]string{"csi:theirs.example.com"}, ""},
	} {
		err := create(user, inlinePod(name, c.drivers...))
		switch {
		case c.needs == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.needs != "" && (!apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), `"use" on "flexdrivers" in group "volplane.dev" for the name "`+c.needs)):
			t.Errorf("%s: %v, want forbidden", name, err)
		}
	}
	if _, err := user.CoreV1().Pods("kube-system").Create(ctx, inlinePod("p", "example.com/allowed"),
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: %v, want forbidden", err)
	}
	if err := create(admin, inlinePod("theirs", "example.com/other", "csi:made.example.com")); err != nil {
		t.Errorf("administrator: %v", err)
	}
	if _, err := user.CoreV1().Pods("default").Patch(ctx, "theirs", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a change that brings no driver: %v", err)
	}
}

// TestNoDriverComesLater: no user can add a driver to an existing Pod, in any way.
func TestNoDriverComesLater(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	if _, err := admin.CoreV1().Pods("default").Create(ctx, inlinePod("plain"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	add := []byte(`{"spec":{"volumes":[{"name":"z","flexVolume":{"driver":"example.com/other"}}]}}`)
	for _, sub := range [][]string{nil, {"ephemeralcontainers"}, {"resize"}, {"status"}} {
		p, err := admin.CoreV1().Pods("default").Patch(ctx, "plain", types.MergePatchType, add, metav1.PatchOptions{}, sub...)
		if err == nil && len(p.Spec.Volumes) > 0 {
			t.Errorf("a driver came into the Pod by way of %v", sub)
		}
	}
}

// csiDrivers creates a CSIDriver as volplane does for a FlexVolume driver, and one of another owner.
func csiDrivers(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	for name, label := range map[string]string{"made.example.com": volume.Program, "theirs.example.com": "helm"} {
		d := &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{volume.LabelMadeBy: label}},
			Spec: storagev1.CSIDriverSpec{
				VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
			},
		}
		if _, err := admin.StorageV1().CSIDrivers().Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// mayUse grants someone the use of a driver in the Pods of a namespace, as documented.
func mayUse(t *testing.T, admin kubernetes.Interface, driver string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "flex-drivers"}
	_, err := admin.RbacV1().Roles("default").Create(t.Context(),
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{volume.Domain}, Resources: []string{"flexdrivers"}, ResourceNames: []string{driver},
			Verbs: []string{"use"},
		}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "someone"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
