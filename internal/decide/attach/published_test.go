package attach

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/testkit/golden"
)

// publishedCase is a comparison of a driver's list with the API.
type publishedCase struct {
	argues string
	facts  PublishedFacts
}

func publishedCases() []publishedCase {
	dying := pv("pv")
	dying.DeletionTimestamp = &dying.CreationTimestamp
	anew := pv("pv")
	anew.Spec.CSI.VolumeHandle = "h-anew"
	here, there := Pair{"h-pv", "id1"}, Pair{"h-pv", "id9"}
	done := attachment("pv", "n1", attached, held, recorded)
	return []publishedCase{
		{"both say the same", PublishedFacts{Published: pairs(here), Attachments: attachments(done), Settled: settled(done)}},
		{"the driver does not know of an attachment", rested(done)},
		{"but has it on other nodes, one of them of another cluster", PublishedFacts{
			Attachments: attachments(done), Settled: settled(done), Published: pairs(there, Pair{"h-pv", "id2"}),
			Nodes: map[string]*corev1.Node{"id1": node(), "id2": {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}},
		}},
		{"what it did not know of it knows again", PublishedFacts{
			Published: pairs(here), Attachments: attachments(attachment("pv", "n1", attached, held, recorded, failing)),
		}},
		{"what has just failed it does not have", PublishedFacts{
			Attachments: attachments(attachment("pv", "n1", held, recorded, failing)), Published: pairs(here),
		}},
		{"it may not know of one that has just been attached", PublishedFacts{Attachments: attachments(done)}},
		{"or is being attached", rested(attachment("pv", "n1", held, recorded))},
		{"or detached", rested(attachment("pv", "n1", attached, going, held, recorded))},
		{"a volume that is being deleted is not attached again", PublishedFacts{
			Attachments: attachments(done), Settled: settled(done), Volumes: []*corev1.PersistentVolume{dying},
		}},
		{"nor one that is gone", PublishedFacts{
			Attachments: attachments(done), Settled: settled(done), Volumes: []*corev1.PersistentVolume{},
		}},
		{"what is attached for nobody is looked at once more", PublishedFacts{Published: pairs(here)}},
		{"and then detached", PublishedFacts{Published: pairs(here), Suspects: pairs(here)}},
		{"unless its attachment has come", PublishedFacts{
			Published: pairs(here), Suspects: pairs(here), Attachments: attachments(attachment("pv", "n1")),
		}},
		{"or goes by another name", PublishedFacts{
			Published: pairs(here), Suspects: pairs(here),
			Attachments: attachments(attachment("pv", "n1", renamed, held, recorded)),
		}},
		{"a volume that its node uses stays", PublishedFacts{
			Published: pairs(here), Suspects: pairs(here), Nodes: map[string]*corev1.Node{"id1": node(uses("pv"))},
		}},
		{"a node that we do not know is another cluster's", PublishedFacts{Published: pairs(there), Suspects: pairs(there)}},
		{"and so is a volume", PublishedFacts{
			Published: pairs(Pair{"h-other", "id1"}), Suspects: pairs(Pair{"h-other", "id1"}),
		}},
		{"an attachment on a node with another name by now is asked for under both", PublishedFacts{
			Published: pairs(here, Pair{"h-pv", "id2"}), Suspects: pairs(here, Pair{"h-pv", "id2"}),
			Attachments: attachments(done), Settled: settled(done),
			Nodes: map[string]*corev1.Node{"id2": node()},
		}},
		{"an attachment without a record is known by its volume and node", rested(attachment("pv", "n1", attached))},
		{"one whose record cannot be read is, too", rested(attachment("pv", "n1", attached, torn))},
		{"a node that nobody knows is not asked for", rested(attachment("pv", "n7", attached))},
		{"an attachment that says itself what it is about is asked for by that", PublishedFacts{
			Published: pairs(Pair{"h-inline", "id1"}), Suspects: pairs(Pair{"h-inline", "id1"}),
			Attachments: attachments(attachment("", "n1", inline)),
			Volumes:     []*corev1.PersistentVolume{pv("inline")},
		}},
		{"not by a volume object that has its handle for a name", PublishedFacts{
			Published: pairs(Pair{"h-inline", "id1"}), Suspects: pairs(Pair{"h-inline", "id1"}),
			Attachments: attachments(attachment("", "n1", inline)),
			Volumes:     []*corev1.PersistentVolume{pv("inline"), pv("h-inline")},
		}},
		{"one whose object was made again for another volume says nothing about that", PublishedFacts{
			Attachments: attachments(attachment("pv", "n1", attached)), Settled: settled(attachment("pv", "n1")),
			Volumes: []*corev1.PersistentVolume{anew},
		}},
		{"one about what is not a CSI volume is left alone", rested(attachment("", "n1", attached, inlinePath))},
		{"several are detached in one order", PublishedFacts{
			Published: pairs(here, Pair{"h-c", "id1"}, Pair{"h-b", "id1"}),
			Suspects:  pairs(here, Pair{"h-c", "id1"}, Pair{"h-b", "id1"}),
			Volumes:   []*corev1.PersistentVolume{pv("pv"), pv("b"), pv("c")},
		}},
		{"one that nobody knows is left alone", rested(attachment("x", "n7", attached))},
	}
}

func TestPublished(t *testing.T) {
	var out strings.Builder
	for _, c := range publishedCases() {
		c.facts.Driver = driver
		if c.facts.Volumes == nil {
			c.facts.Volumes = []*corev1.PersistentVolume{pv("pv")}
		}
		if c.facts.Nodes == nil {
			c.facts.Nodes = map[string]*corev1.Node{"id1": node()}
		}
		fmt.Fprintf(&out, "# %s\n%s\n", c.argues, publishedText(t, Published(c.facts)))
	}
	golden.Equal(t, "testdata/published.txt", out.String())
}

// rested are the facts of an attachment that nobody has touched for a while.
func rested(a *storagev1.VolumeAttachment) PublishedFacts {
	return PublishedFacts{Attachments: attachments(a), Settled: settled(a)}
}

func pairs(all ...Pair) map[Pair]bool {
	m := map[Pair]bool{}
	for _, p := range all {
		m[p] = true
	}
	return m
}

func settled(a *storagev1.VolumeAttachment) map[types.UID]bool {
	return map[types.UID]bool{a.UID: true}
}

func publishedText(t *testing.T, p PublishedPlan) string {
	t.Helper()
	var b strings.Builder
	for _, c := range p.Again {
		fmt.Fprintf(&b, "again %s by %s: %s\n", c.Volume.Name, c.Attachment.Name, whyText(c.Because))
	}
	for _, a := range p.Agreed {
		fmt.Fprintf(&b, "agreed %s\n%s\n", a.Name, resultText(t, Agreed(a)))
	}
	for _, c := range p.Again {
		fmt.Fprintln(&b, resultText(t, Vanished(c, now())))
		c.Attachment = c.Attachment.DeepCopy()
		c.Attachment.Status.AttachError = &storagev1.VolumeError{Message: c.Cause}
		if r := Vanished(c, now()); r.Status != nil || r.Warn {
			t.Errorf("%s is written twice: %v", c.Cause, r.Status)
		}
	}
	for _, c := range p.Undo {
		fmt.Fprintf(&b, "undo %s: %s\n%s", c.Volume.Name, whyText(c.Because), golden.Change(t, nil, c.Attachment))
	}
	if len(p.Suspects) > 0 {
		fmt.Fprintf(&b, "suspect %v\n", p.Suspects)
	}
	fmt.Fprintln(&b, whyText(p.Because))
	return b.String()
}
