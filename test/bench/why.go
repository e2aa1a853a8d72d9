package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/test/internal/plane"
)

// whyDriver is a driver that does not provision and does not attach.
const whyDriver = "why.example.com"

// measureWhy explains one of n bound claims, first while no volume is attached and then while all are. The time is that
// of the whole program.
func measureWhy(ctx context.Context, figures map[string]any, n, rounds int) error {
	figures["why_volumes"] = n
	return withMany(ctx, n, func(p *plane.Plane, client kubernetes.Interface) error {
		return askAboutMany(ctx, p, client, figures, n, rounds)
	})
}

// withMany calls f for a plane with n bound claims.
func withMany(ctx context.Context, n int, f func(p *plane.Plane, client kubernetes.Interface) error) error {
	dir, err := os.MkdirTemp("", "volplane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := plane.Start(ctx, dir+"/plane")
	if err != nil {
		return err
	}
	defer p.Stop()
	client, err := p.Client()
	if err != nil {
		return err
	}
	if err := bindMany(ctx, client, n); err != nil {
		return err
	}
	return f(p, client)
}

// askAboutMany explains one of n claims.
func askAboutMany(
	ctx context.Context, p *plane.Plane, client kubernetes.Interface, figures map[string]any, n, rounds int,
) error {
	for _, step := range []struct {
		name    string
		prepare func(ctx context.Context, client kubernetes.Interface, name string) error
	}{{"", nil}, {"_all_attached", attachOne}} {
		if step.prepare != nil {
			if err := each(n, func(name string) error { return step.prepare(ctx, client, name) }); err != nil {
				return err
			}
		}
		for figure, what := range map[string][]string{
			"why_pvc": {"pvc/many-7"}, "why_pv": {"pv/many-7"}, "why_class": {"sc/local"}, "why_all": {"-A"},
		} {
			took, err := askWhy(ctx, p.Kubeconfig(), rounds, what...)
			if err != nil {
				return err
			}
			figures[figure+step.name+"_ms"] = milliseconds(took)
		}
	}
	return askFromFar(ctx, figures, p.Kubeconfig(), p.Kubeconfig()+".far", rounds)
}

// askFromFar explains one claim and all of them, as an administrator of a distant cluster.
func askFromFar(ctx context.Context, figures map[string]any, kubeconfig, far string, rounds int) error {
	stop, err := farAway(kubeconfig, far)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	for figure, what := range map[string]string{"why_pvc": "pvc/many-7", "why_all": "-A"} {
		took, err := askWhy(ctx, far, rounds, what)
		if err != nil {
			return err
		}
		figures[figure+"_all_attached_from_far_ms"] = milliseconds(took)
	}
	return nil
}

// askWhy returns the median time of an explanation. An exit code for something that waits is not an error.
func askWhy(ctx context.Context, kubeconfig string, rounds int, what ...string) (time.Duration, error) {
	var times []time.Duration
	for range rounds {
		cmd := exec.CommandContext(ctx, plane.Bin("volplane"), append([]string{"why", "--kubeconfig", kubeconfig},
			what...)...)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		times = append(times, time.Since(began))
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 2) {
			return 0, fmt.Errorf("why %v: %w: %s", what, err, out)
		}
	}
	return median(times), nil
}

// each calls f for the names of n objects, for many at the same time.
func each(n int, f func(name string) error) error {
	var g errgroup.Group
	g.SetLimit(32)
	for i := range n {
		g.Go(func() error { return f(fmt.Sprint("many-", i)) })
	}
	return g.Wait()
}

// bindMany creates n volumes and claims for each other, and returns when all are bound.
func bindMany(ctx context.Context, client kubernetes.Interface, n int) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	none := ""
	err := each(n, func(name string) error {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: whyDriver, VolumeHandle: name},
			},
		}}
		if _, err := client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
			return err
		}
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none, VolumeName: name, AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		}}
		_, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, c, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	for {
		list, err := client.CoreV1().PersistentVolumeClaims("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		bound := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == corev1.ClaimBound {
				bound++
			}
		}
		if bound == n {
			return nil
		}
		time.Sleep(time.Second)
	}
}

// attachOne creates an attachment that no controller deletes.
func attachOne(ctx context.Context, client kubernetes.Interface, name string) error {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: whyDriver, NodeName: "elsewhere", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
	}}
	_, err := client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
	return err
}
