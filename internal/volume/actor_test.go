package volume

import (
	"encoding/json"
	"testing"
)

// TestActorText: each actor has one text, in sentences, annotations and reports, and is read from it again.
func TestActorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		actor Actor
		kind  ActorKind
		name  string
	}{
		{"", Actor{}, "", ""},
		{"", Driver(""), "", ""},
		{"user", User(), KindUser, ""},
		{"administrator of node n1", Administrator("n1"), KindAdministrator, "n1"},
		{"administrator of a node", AnyAdministrator(), KindAdministrator, ""},
		{"administrator of the control plane", ControlPlane(), KindControlPlane, ""},
		{"node n1", NodeAgent("n1"), KindNode, "n1"},
		{"node a, b", NodeAgent("a, b"), KindNode, "a, b"},
		{"node", AnyNodeAgent(), KindNode, ""},
		{"user of the mount on node n1", MountUser("n1"), KindMountUser, "n1"},
		{"pod web", PodActor("web"), KindPod, "web"},
		{"pod ns/web", PodActor("ns/web"), KindPod, "ns/web"},
		{"pvc data", ClaimActor("data"), KindClaim, "data"},
		{"d.example.com", Driver("d.example.com"), KindDriver, "d.example.com"},
		{"example.com/nfs", Driver("example.com/nfs"), KindDriver, "example.com/nfs"},
		{"FlexVolume driver example.com/lofs", FlexDriver("example.com/lofs"), KindFlexDriver, "example.com/lofs"},
		{"binder", Controller("binder"), KindController, "binder"},
		{"provisioner", Controller("provisioner"), KindController, "provisioner"},
		{"attacher", Controller("attacher"), KindController, "attacher"},
		{"resizer", Controller("resizer"), KindController, "resizer"},
		{"placement", Controller("placement"), KindController, "placement"},
		{"attachdetach", Controller("attachdetach"), KindController, "attachdetach"},
		{"protection", Controller("protection"), KindController, "protection"},
		{"ephemeral", Controller("ephemeral"), KindController, "ephemeral"},
		{"snapshot-controller", Controller("snapshot-controller"), KindController, "snapshot-controller"},
		{"group-snapshot-controller", Controller("group-snapshot-controller"), KindController, "group-snapshot-controller"},
		{"namespace controller", Controller("namespace controller"), KindController, "namespace controller"},
		{"populator", Populator(""), KindPopulator, ""},
		{"populator of Disk.example.com", Populator("Disk.example.com"), KindPopulator, "Disk.example.com"},
		{"owner of example.com/keep", OwnerOf("example.com/keep"), KindOwner, "example.com/keep"},
		{"API server", APIServer(), KindAPIServer, ""},
	} {
		if want := (Actor{c.kind, c.name}); c.actor != want || c.actor.IsZero() != (c.text == "") {
			t.Errorf("%q is kind %q, name %q", c.text, c.actor.Kind, c.actor.Name)
		}
		if got := c.actor.String(); got != c.text {
			t.Errorf("%q is called %q", c.text, got)
		}
		if got := ParseActor(c.text); got != c.actor {
			t.Errorf("%q is read as kind %q, name %q", c.text, got.Kind, got.Name)
		}
	}
}

// TestActorJSON: in JSON an actor is its text; the same fields without methods are an object.
func TestActorJSON(t *testing.T) {
	t.Parallel()
	type fields Actor
	type report struct {
		Next  Actor  `json:"next,omitzero"`
		Actor fields `json:"actor,omitzero"`
	}
	for text, r := range map[string]report{
		`{}`: {},
		`{"next":"node n1","actor":{"kind":"node","name":"n1"}}`: {NodeAgent("n1"), fields(NodeAgent("n1"))},
		`{"next":"user","actor":{"kind":"user"}}`:                {User(), fields(User())},
	} {
		var read report
		if got, err := json.Marshal(r); err != nil || string(got) != text {
			t.Errorf("%s, %v, want %s", got, err, text)
		}
		if err := json.Unmarshal([]byte(text), &read); err != nil || read != r {
			t.Errorf("%s is read as %+v, %v", text, read, err)
		}
	}
}
