package volume

import (
	"slices"
	"strings"
)

// ActorKind is the kind of the person or program that acts next.
type ActorKind string

// The kinds of actors. A name that is not known, or does not matter, is empty; users, the control plane and the API
// server have none.
const (
	// KindUser is the owner of the object that a decision is about.
	KindUser ActorKind = "user"
	// KindAdministrator is the administrator of a node, named by the node.
	KindAdministrator ActorKind = "administrator"
	// KindControlPlane is the administrator of the control plane.
	KindControlPlane ActorKind = "controlplane"
	// KindNode is the agent of a node, named by the node.
	KindNode ActorKind = "node"
	// KindMountUser is the user of a mount on a node, named by the node.
	KindMountUser ActorKind = "mountuser"
	// KindPod is a Pod, named as NAME or NAMESPACE/NAME: it has to end.
	KindPod ActorKind = "pod"
	// KindClaim is a claim, named by itself: it has to be bound.
	KindClaim ActorKind = "claim"
	// KindDriver is a driver, or the program that calls it, named by the driver.
	KindDriver ActorKind = "driver"
	// KindFlexDriver is a FlexVolume driver of a host, named as VENDOR/DRIVER.
	KindFlexDriver ActorKind = "flexdriver"
	// KindController is a controller, named as its program names it.
	KindController ActorKind = "controller"
	// KindPopulator is the program that fills a volume from another object, named by the kind of that object.
	KindPopulator ActorKind = "populator"
	// KindOwner is the owner of a finalizer, named by the finalizer.
	KindOwner ActorKind = "owner"
	// KindAPIServer is the API server.
	KindAPIServer ActorKind = "apiserver"
)

// Actor is who has to act next. The zero value stands for no one. In JSON it is the text of String; a type of the
// same fields without methods is an object there.
type Actor struct {
	Kind ActorKind `json:"kind"`
	Name string    `json:"name,omitempty"`
}

// User returns the actor that is the owner of the object.
func User() Actor { return Actor{Kind: KindUser} }

// Administrator returns the actor that is the administrator of a node.
func Administrator(node string) Actor { return Actor{KindAdministrator, node} }

// AnyAdministrator returns the actor that is the administrator of any node.
func AnyAdministrator() Actor { return Actor{Kind: KindAdministrator} }

// ControlPlane returns the actor that is the administrator of the control plane.
func ControlPlane() Actor { return Actor{Kind: KindControlPlane} }

// NodeAgent returns the actor that is the agent of a node.
func NodeAgent(node string) Actor { return Actor{KindNode, node} }

// AnyNodeAgent returns the actor that is the agent of a node whose name is not known.
func AnyNodeAgent() Actor { return Actor{Kind: KindNode} }

// MountUser returns the actor that is the user of a mount on a node.
func MountUser(node string) Actor { return Actor{KindMountUser, node} }

// PodActor returns the actor that is a Pod, named as NAME or NAMESPACE/NAME.
func PodActor(name string) Actor { return Actor{KindPod, name} }

// ClaimActor returns the actor that is a claim.
func ClaimActor(name string) Actor { return Actor{KindClaim, name} }

// Driver returns the actor that is a driver, or the program that calls it; zero if the name is empty.
func Driver(name string) Actor {
	if name == "" {
		return Actor{}
	}
	return Actor{KindDriver, name}
}

// FlexDriver returns the actor that is a FlexVolume driver of a host, named as VENDOR/DRIVER.
func FlexDriver(name string) Actor { return Actor{KindFlexDriver, name} }

// Controller returns the actor that is a controller. ParseActor has to know its name.
func Controller(name string) Actor { return Actor{KindController, name} }

// Populator returns the actor that fills volumes from objects of a kind; the kind may be "".
func Populator(kind string) Actor { return Actor{KindPopulator, kind} }

// OwnerOf returns the actor that has set a finalizer.
func OwnerOf(finalizer string) Actor { return Actor{KindOwner, finalizer} }

// APIServer returns the actor that is the API server.
func APIServer() Actor { return Actor{Kind: KindAPIServer} }

// IsZero says whether no one has to act.
func (a Actor) IsZero() bool { return a == Actor{} }

// Node returns the name of the node whose agent has to act; "" for all other actors.
func (a Actor) Node() string {
	if a.Kind != KindNode {
		return ""
	}
	return a.Name
}

// actorText is how sentences and annotations name the actors of a kind.
type actorText struct {
	kind ActorKind
	// alone is the text of an actor without a name; before is what stands before a name.
	alone, before string
}

// actorTexts returns the texts of all kinds but drivers and controllers, whose text is the name.
func actorTexts() []actorText {
	return []actorText{
		{KindUser, "user", ""},
		{KindAdministrator, "administrator of a node", "administrator of node "},
		{KindControlPlane, "administrator of the control plane", ""},
		{KindNode, "node", "node "},
		{KindMountUser, "", "user of the mount on node "},
		{KindPod, "", "pod "},
		{KindClaim, "", "pvc "},
		{KindFlexDriver, "", "FlexVolume driver "},
		{KindPopulator, "populator", "populator of "},
		{KindOwner, "", "owner of "},
		{KindAPIServer, "API server", ""},
	}
}

// String returns the actor as sentences and annotations name it; it is empty when no one has to act.
func (a Actor) String() string {
	for _, t := range actorTexts() {
		switch {
		case a.Kind == t.kind && a.Name == "":
			return t.alone
		case a.Kind == t.kind:
			return t.before + a.Name
		}
	}
	return a.Name
}

// ParseActor reads an actor from a text that String has made, as annotations and reports have it. A name alone is that
// of a controller if one has it, and of a driver otherwise: the name of a driver is a domain name.
func ParseActor(text string) Actor {
	for _, t := range actorTexts() {
		if text != "" && text == t.alone {
			return Actor{Kind: t.kind}
		}
		if name, ok := strings.CutPrefix(text, t.before); ok && t.before != "" {
			return Actor{t.kind, name}
		}
	}
	if slices.Contains(controllers(), text) {
		return Controller(text)
	}
	return Driver(text)
}

// Suffix returns how the text of a warning ends, which shows the actor to people whose tool shows no annotations; it is
// empty when no one has to act.
func (a Actor) Suffix() string {
	if a.IsZero() {
		return ""
	}
	return " (next: " + a.String() + ")"
}

// MarshalText returns the text of String.
func (a Actor) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (a *Actor) UnmarshalText(text []byte) error {
	*a = ParseActor(string(text))
	return nil
}

// controllers returns the names of the controllers that act next.
func controllers() []string {
	return []string{
		"binder", "provisioner", "attacher", "resizer", "placement", "attachdetach", "protection", "ephemeral",
		"snapshot-controller", "group-snapshot-controller", "namespace controller",
	}
}
