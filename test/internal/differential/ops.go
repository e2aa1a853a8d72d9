package differential

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/upstream"
)

// Weighted is an operation that is drawn with this weight.
type Weighted struct {
	Often int
	Draw  func() Op
}

// OneOf draws one of some operations by their weights.
func (d *Dice) OneOf(all []Weighted) Op {
	sum := 0
	for _, a := range all {
		sum += a.Often
	}
	n := d.IntN(sum)
	for _, a := range all {
		if n -= a.Often; n < 0 {
			return a.Draw()
		}
	}
	panic("the weights have another sum")
}

// LoseVolume deletes a volume whatever keeps it.
func LoseVolume(v string) Op {
	return Op{
		Text: "delete volume " + v + " with all its finalizers",
		Do: func(ctx context.Context, s Side, space string) error {
			if err := s.Client.CoreV1().PersistentVolumes().Delete(ctx, space+"-"+v, metav1.DeleteOptions{}); err != nil {
				return err
			}
			// If a controller releases it at the same moment, there is a conflict: only the patch
			// is repeated, because the whole step might find nothing any more.
			return upstream.Unmet(func() error {
				_, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, space+"-"+v, types.MergePatchType,
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				return err
			})
		},
	}
}

// AttachFault draws how calls of a method for attaching fail from now on.
func (d *Dice) AttachFault(method string) Op {
	f := Fault{Times: Pick(d, 1, 2, 0), Code: Pick(d, codes.Internal, codes.Internal, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.InvalidArgument,
		codes.NotFound, codes.AlreadyExists, codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled)}
	if f.Code == codes.Unavailable || f.Code == codes.DeadlineExceeded {
		f.After = d.IntN(2) == 0
	}
	return Failing(method, f)
}

// Failing has calls of a method fail from now on.
func Failing(method string, f Fault) Op {
	text := fmt.Sprintf("let the driver answer %s with %s, %d times a volume (0 is always), done nevertheless: %v", method,
		f.Code, f.Times, f.After)
	return Op{Text: text, Do: func(_ context.Context, s Side, space string) error {
		s.Storage.Fail(space, method, f)
		return nil
	}}
}

// With does another op as well.
func (o Op) With(other Op) Op {
	first := o.Do
	return Op{Text: o.Text + "; " + other.Text, Do: func(ctx context.Context, s Side, space string) error {
		if err := first(ctx, s, space); err != nil {
			return err
		}
		return other.Do(ctx, s, space)
	}}
}

// PatchClaim patches a claim; text describes it in the sequence.
func PatchClaim(claim, text, patch string) Op {
	return Op{Text: text, Do: func(ctx context.Context, s Side, space string) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, claim, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		return err
	}}
}

// Heal ends the faults. Users edit their claims and volumes then, so that no controller
// waits for the end of a long pause.
func Heal(mark int) Op {
	return Op{Text: "let the driver work again", Do: func(ctx context.Context, s Side, space string) error {
		s.Storage.heal(space)
		return s.Topic.Touch(ctx, s, space, mark)
	}}
}

// ChangeSecret creates or deletes one of the Secrets.
func (d *Dice) ChangeSecret() Op {
	name := Pick(d, "s0", "s0", "s1", "c0")
	if d.IntN(2) == 0 {
		return d.NewSecret(name)
	}
	return DeleteSecret(name)
}

// DeleteSecret deletes a Secret.
func DeleteSecret(name string) Op {
	return Op{Text: "delete secret " + name, Do: func(ctx context.Context, s Side, space string) error {
		return s.Client.CoreV1().Secrets(space).Delete(ctx, name, metav1.DeleteOptions{})
	}}
}

// NewSecret creates a Secret with a drawn value, and touches the claims, which may have waited for it.
func (d *Dice) NewSecret(name string) Op {
	value, mark := fmt.Sprint(d.IntN(100)), d.Int()
	return Op{
		Text: "make secret " + name + ", touch the claims",
		Do: func(ctx context.Context, s Side, space string) error {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"key": []byte(value)}}
			if _, err := s.Client.CoreV1().Secrets(space).Create(ctx, secret, metav1.CreateOptions{}); err != nil &&
				!upstream.Refused(err) {
				return err
			}
			return s.Topic.Touch(ctx, s, space, mark)
		},
	}
}

// DeleteClaim deletes a claim.
func DeleteClaim(name string) Op {
	return Op{Text: "delete claim " + name, Do: func(ctx context.Context, s Side, space string) error {
		return s.Client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, name, metav1.DeleteOptions{})
	}}
}

// DeleteVolume deletes the object of a volume.
func DeleteVolume(name string) Op {
	return Op{Text: "delete volume " + name, Do: func(ctx context.Context, s Side, space string) error {
		return s.Client.CoreV1().PersistentVolumes().Delete(ctx, space+"-"+name, metav1.DeleteOptions{})
	}}
}

// DeletePod deletes a Pod without a grace period.
func DeletePod(name string) Op {
	return Op{Text: "delete pod " + name, Do: func(ctx context.Context, s Side, space string) error {
		return s.Client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	}}
}

// And returns the op with a longer text.
func (o Op) And(text string) Op {
	o.Text += text
	return o
}

// ReleaseClaim ends the protection of a claim, as when no Pod uses it.
func ReleaseClaim(name string) Op {
	return Op{Text: "no pod uses claim " + name, Do: func(ctx context.Context, s Side, space string) error {
		return s.UnprotectClaim(ctx, space, name)
	}}
}
