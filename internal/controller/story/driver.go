package story

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// beginDriver starts the driver, if there is one.
func (c *Scene) beginDriver() {
	if c.cast.Driver == nil {
		return
	}
	c.driver = csitest.InMemory(c, c.config)
	c.driver.OnEach(c.call)
	c.had = c.inventory()
	if c.dialed = c.driver.Dial(csitest.CheckCallLog(c)); c.scope != (volume.Scope{}) {
		c.dialed = c.dialed.In(c.scope)
	}
	if !c.absent {
		c.Drivers.Put(c.dialed)
	}
}

// moveDriver changes the driver's capabilities, or whether it is registered and for whom, or gives it a volume.
func (c *Scene) moveDriver(args []string) error {
	switch word := args[0]; {
	case word[0] == '+', word[0] == '-':
		return c.setCapabilities(args)
	case word == "gone" && !c.begun:
		c.absent = true
	case word == "gone":
		c.Drivers.Remove(c.dialed)
	case word == "back":
		c.Drivers.Put(c.dialed)
	case word == "made" && len(args) == 2:
		c.begin()
		_, err := c.driver.CreateVolume(c.Context(), &csipb.CreateVolumeRequest{
			Name: args[1], VolumeCapabilities: []*csipb.VolumeCapability{{}},
		})
		c.had = c.inventory()
		return err
	case word == "serves":
		node, rest, _ := strings.Cut(strings.Join(args[1:], " "), " ")
		c.scope = volume.Scope{Node: node, Rest: rest != "only"}
		if c.begun {
			c.Drivers.Remove(c.dialed)
			c.dialed = c.dialed.In(c.scope)
			c.Drivers.Put(c.dialed)
		}
	default:
		return fmt.Errorf("a driver cannot be %q", word)
	}
	return nil
}

// setCapabilities changes the driver's capabilities, "-Controller.Expand".
func (c *Scene) setCapabilities(words []string) error {
	if c.begun {
		return errors.New("the driver is running")
	}
	for _, word := range words {
		field := reflect.ValueOf(&c.config).Elem()
		for name := range strings.SplitSeq(word[1:], ".") {
			field = field.FieldByName(name)
		}
		field.SetBool(word[0] == '+')
	}
	return nil
}

// busy puts calls in flight: their number, the call, the namespace, and the driver if it is another one.
func (c *Scene) busy(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	c.begin()
	lane := controller.Lane{Driver: c.config.Name, Call: args[1], Namespace: args[2]}
	if len(args) > 3 {
		lane.Driver = args[3]
	}
	for i := range n {
		k := controller.Key{Kind: "busy", Namespace: args[1], Name: strconv.Itoa(i)}
		c.life().Enter(k, lane, func(volume.Because) {})
	}
	return nil
}

// inventory returns the ids of the volumes that the driver has, and of the snapshots that it did not have at the start.
func (c *Scene) inventory() string {
	if c.driver == nil {
		return ""
	}
	out := "the driver has"
	for _, v := range c.driver.Volumes() {
		out += " " + v.ID
	}
	for _, id := range c.driver.Snapshots() {
		if !slices.Contains(c.config.Snapshots, id) {
			out += " " + id
		}
	}
	return out
}

// noteCall records a call, with its difference from the usual request.
func (c *Scene) noteCall(method string, request proto.Message) {
	name := request.ProtoReflect().Descriptor().FullName()
	at := slices.IndexFunc(c.cast.Usual, func(m proto.Message) bool {
		return m.ProtoReflect().Descriptor().FullName() == name
	})
	lines := []string{method + " " + flow(plain(message{request}))}
	if at >= 0 {
		lines = append([]string{method}, differences(message{c.cast.Usual[at]}, message{request})...)
	}
	c.note(strings.Join(lines, "\n"), lines...)
}

// message is a message that JSON has as CSI's clients write it.
type message struct{ proto.Message }

// MarshalJSON implements json.Marshaler.
func (m message) MarshalJSON() ([]byte, error) { return protojson.Marshal(m.Message) }

// subject is the volume or snapshot that a call is about.
func subject(request proto.Message) string {
	switch r := request.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case interface{ GetName() string }:
		return r.GetName()
	case interface{ GetSnapshotId() string }:
		return r.GetSnapshotId()
	}
	return ""
}

func unavailable(err error) error { return status.Error(codes.Unavailable, err.Error()) }

// failure is the answer "CODE: MESSAGE".
func (c *Scene) failure(effect string) error {
	name, text, _ := strings.Cut(effect, ": ")
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return status.Error(code, text)
		}
	}
	c.Errorf("there is no code %s", name)
	return nil
}

// answer creates the response to a request from JSON, which may have the fields of CSI 1.12.
func (c *Scene) answer(request proto.Message, text string) proto.Message {
	name := strings.TrimSuffix(string(request.ProtoReflect().Descriptor().FullName()), "Request") + "Response"
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		c.Error(err)
		return nil
	}
	m := kind.New().Interface()
	if err := csitest.Older(m, text); err != nil {
		c.Error(err)
	}
	return m
}
