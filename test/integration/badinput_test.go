package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// badInput is a mistake in a claim, in its class, in its Secret, or in the driver's answer.
type badInput struct {
	argues string
	// parameters are the class's, annotations and size the claim's, secret the
	// data of Secret default/s.
	parameters, annotations map[string]string
	size                    string
	provisioner             string
	secret                  map[string][]byte
	// answers is what the driver says to CreateVolume with that name.
	answers func(name string) csitest.Action
	// says are words of the event and of `volplane why`.
	says []string
	// asks says that the driver is called at all.
	asks bool
}

// next is who has to act: who wrote the object, or the driver, unless the
// driver says that it is the request.
func (b badInput) next(driver string) string {
	switch {
	case b.provisioner != "":
		return b.provisioner
	case b.asks && !strings.HasPrefix(b.says[0], "InvalidArgument"):
		return driver
	}
	return "user"
}

// badParameters returns mistakes in a class and in a claim.
func badParameters() []badInput {
	secretNamed := func(name, namespace string) map[string]string {
		return map[string]string{
			"csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
		}
	}
	team := "${pvc.annotations['team']}"
	annotated := func(v string) map[string]string { return map[string]string{"team": v} }
	return []badInput{
		{
			argues: "a parameter that nobody knows", parameters: map[string]string{"csi.storage.k8s.io/fstyp": "xfs"},
			says: []string{`unknown parameter "csi.storage.k8s.io/fstyp"`},
		},
		{argues: "a name without a namespace", parameters: map[string]string{
			"csi.storage.k8s.io/provisioner-secret-name": "s",
		}, says: []string{"needs both a name and a namespace"}},
		{argues: "a template that is not closed", parameters: secretNamed("${pvc.name", "default"), says: []string{
			`unknown token in "${pvc.name"`,
		}},
		{argues: "a template that nobody knows", parameters: secretNamed("${pod.name}", "default"), says: []string{
			"unknown token", "${pod.name}",
		}},
		{
			argues: "a namespace that the claim's user would choose", parameters: secretNamed("s", team),
			annotations: annotated("kube-system"), says: []string{"namespace of the provisioner secret", "unknown token"},
		},
		{argues: "an annotation that is not there", parameters: secretNamed(team, "default"), says: []string{
			"unknown token", "annotations['team']",
		}},
		{
			argues: "an annotation that is empty", parameters: secretNamed(team, "default"), annotations: annotated(""),
			says: []string{"provisioner secret"},
		},
		{
			argues: "an annotation that is a path", parameters: secretNamed(team, "default"),
			annotations: annotated("../../kube-system/secrets/s"), says: []string{"provisioner secret"},
		},
		{
			argues: "an annotation of two lines", parameters: secretNamed(team, "default"), annotations: annotated("s\ns"),
			says: []string{"provisioner secret"},
		},
		{
			argues: "an annotation that is a template", parameters: secretNamed(team, "default"),
			annotations: annotated("${pvc.name}"), says: []string{"provisioner secret"},
		},
		{
			argues: "an annotation that is too long", parameters: secretNamed(team, "default"),
			annotations: annotated(strings.Repeat("s", 5000)), says: []string{"provisioner secret"},
		},
		{
			argues: "a Secret that is not there", parameters: secretNamed("s", "default"),
			says: []string{`secrets "s" not found`},
		},
		{
			argues: "a Secret that is no text", parameters: secretNamed("s", "default"),
			secret: map[string][]byte{"key": {0xff, 0xfe}}, says: []string{"UTF-8"},
		},
		{argues: "a driver that nobody has", provisioner: "nobody.example.com", says: []string{"nobody.example.com"}},
		{argues: "a size that no driver can be asked for", size: "1e30", says: []string{"1e30", "too large"}},
	}
}

// wrongAnswers returns mistakes and failures of a driver.
func wrongAnswers() []badInput {
	volumeOf := func(id string, bytes int64) *csipb.CreateVolumeResponse {
		return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: id, CapacityBytes: bytes}}
	}
	answer := func(change func(v *csipb.Volume)) func(string) csitest.Action {
		return func(name string) csitest.Action {
			r := volumeOf("id-"+name, 2<<30)
			change(r.GetVolume())
			return csitest.Action{After: true, Answer: r}
		}
	}
	return []badInput{
		{
			argues: "a volume that is too small", asks: true,
			answers: answer(func(v *csipb.Volume) { v.CapacityBytes = 1 << 30 }), says: []string{"1073741824", "2147483648"},
		},
		{
			argues: "a volume of less than nothing", asks: true,
			answers: answer(func(v *csipb.Volume) { v.CapacityBytes = -1 }), says: []string{"negative Volume.capacity_bytes"},
		},
		{argues: "a volume where no label can say it", asks: true, answers: answer(func(v *csipb.Volume) {
			v.AccessibleTopology = []*csipb.Topology{{Segments: map[string]string{"no label!": "here"}}}
		}), says: []string{"refused"}},
		{argues: "a volume with a context that no object holds", asks: true, answers: answer(func(v *csipb.Volume) {
			v.VolumeContext = map[string]string{"key": strings.Repeat("x", 3<<20)}
		}), says: []string{"breaks the CSI specification"}},
		{argues: "the id of another volume", asks: true, answers: func(string) csitest.Action {
			return csitest.Action{Answer: volumeOf("by-hand-taken", 2<<30)}
		}, says: []string{"taken", "already exists"}},
		{argues: "no id", asks: true, answers: func(string) csitest.Action {
			return csitest.Action{Answer: volumeOf("", 2<<30)}
		}, says: []string{"breaks the CSI specification"}},
		{argues: "no volume", asks: true, answers: func(string) csitest.Action {
			return csitest.Action{Answer: &csipb.CreateVolumeResponse{}}
		}, says: []string{"breaks the CSI specification"}},
		{argues: "an error after the volume is made", asks: true, answers: func(string) csitest.Action {
			return csitest.Action{After: true, Err: status.Error(codes.Internal, "disk on fire")}
		}, says: []string{"Internal: disk on fire"}},
		{argues: "a final error of two lines", asks: true, answers: func(string) csitest.Action {
			return csitest.Action{Err: status.Error(codes.InvalidArgument, "no\nsuch tier"+strings.Repeat("!", 10000))}
		}, says: []string{"InvalidArgument: no"}},
	}
}

// TestBadInput: an event and `volplane why` name the mistake, the driver is not called again immediately,
// and nothing is left when the claim is deleted.
func TestBadInput(t *testing.T) {
	p := newPlane(t)
	p.createVolume("taken", "1Gi", "other")
	for i, b := range append(badParameters(), wrongAnswers()...) {
		t.Run(b.argues, func(t *testing.T) {
			p := p.of(t)
			defer p.clear(b)
			p.prepare(b)
			begin, c := time.Now(), fmt.Sprint("c", i)
			p.createClaim(c, "bad", func(c *corev1.PersistentVolumeClaim) {
				c.Annotations = b.annotations
				if b.size != "" {
					c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(b.size)
				}
			})
			p.explains(c, b.next(p.conn.Name), b.says...)
			p.calm(c, begin)
			if asked := p.created(c) > 0; asked != b.asks {
				t.Errorf("the driver is asked: %v, want %v", asked, b.asks)
			}
			p.driver.OnCall("CreateVolume", nil)
			p.deleteClaim(c)
			p.waitForNoClaim(c)
			p.waitForSettled()
			p.nothingLeft("taken")
		})
	}
}

// of returns the same plane for a part of a test.
func (p *plane) of(t *testing.T) *plane {
	part := *p
	part.t, part.ctx = t, t.Context()
	return &part
}

func (p *plane) prepare(b badInput) {
	p.t.Helper()
	p.createClass("bad", func(c *storagev1.StorageClass) {
		c.Parameters = maps.Clone(b.parameters)
		if b.provisioner != "" {
			c.Provisioner = b.provisioner
		}
	})
	if b.secret != nil {
		_, err := p.client.CoreV1().Secrets("default").Create(p.ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: b.secret}, metav1.CreateOptions{})
		p.must(err)
	}
	if b.answers != nil {
		p.driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action {
			return b.answers(req.(*csipb.CreateVolumeRequest).GetName())
		})
	}
}

func (p *plane) clear(b badInput) {
	p.t.Helper()
	p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "bad", metav1.DeleteOptions{}))
	if b.secret != nil {
		p.must(p.client.CoreV1().Secrets("default").Delete(p.ctx, "s", metav1.DeleteOptions{}))
	}
}

// explains waits until both an event about the claim and the answer of `volplane why` have all words, and
// the answer names who acts next.
func (p *plane) explains(claim, next string, words ...string) {
	p.t.Helper()
	p.eventually(func() string {
		var out, errs bytes.Buffer
		code := cli.Main(p.ctx, []string{
			"why", "pvc/" + claim, "-n", "default", "-o", "json", "--kubeconfig", filepath.Join(p.dir, "admin.kubeconfig"),
		},
			cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, "test", cli.Programs{})
		var why struct {
			Answer struct{ Message, Next string }
		}
		if err := json.Unmarshal(out.Bytes(), &why); err != nil || code != 2 || !has(why.Answer.Message, words) ||
			why.Answer.Next != next {
			return fmt.Sprintf("why ends with %d, %v, and does not blame %s with %q:\n%s%s", code, err, next, words, &out, &errs)
		}
		return ""
	})
	p.warned(claim, words...)
}

// warned waits for a warning about the claim that has all words, or says that there is no provisioner.
func (p *plane) warned(claim string, words ...string) {
	p.t.Helper()
	p.eventually(func() string {
		all, err := p.client.CoreV1().Events("default").List(p.ctx, metav1.ListOptions{})
		p.must(err)
		uid := p.getClaim(claim).UID
		var seen []string
		for _, e := range all.Items {
			reason := volume.Reason(e.Reason)
			if e.InvolvedObject.UID != uid ||
				reason != volume.ReasonProvisioningFailed && reason != volume.ReasonExternalProvisioning {
				continue
			}
			seen = append(seen, e.Message)
			if len(e.Message) <= 1024 && has(e.Message, words) {
				return ""
			}
		}
		return fmt.Sprintf("no event has %q: %q", words, seen)
	})
}

func has(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// created returns the number of calls to create the claim's volume.
func (p *plane) created(claim string) int {
	n, name := 0, "pvc-"+string(p.getClaim(claim).UID)
	for _, r := range p.creations() {
		if r.GetName() == name {
			n++
		}
	}
	return n
}

// calm fails the test when the driver is called more often than a back-off allows that begins with a tenth
// of a second and doubles.
func (p *plane) calm(claim string, begin time.Time) {
	p.t.Helper()
	pause, least := 100*time.Millisecond, time.Duration(0)
	n := p.created(claim)
	for range n - 1 {
		least += pause
		pause *= 2
	}
	if took := time.Since(begin); took < least*9/10 {
		p.t.Errorf("%d calls within %v", n, took)
	}
}
