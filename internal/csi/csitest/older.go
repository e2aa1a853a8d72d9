package csitest

import (
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Older sets a CSI message from JSON that may have the fields volume_condition of CSI 1.12. The message contains them
// as it would from a driver of that version: as unknown fields.
func Older(m proto.Message, text string) error {
	files, err := older()
	if err != nil {
		return err
	}
	d, err := files.FindDescriptorByName(m.ProtoReflect().Descriptor().FullName())
	if err != nil {
		return fmt.Errorf("find a message: %w", err)
	}
	then := dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
	if err := protojson.Unmarshal([]byte(text), then); err != nil {
		return fmt.Errorf("read a message: %w", err)
	}
	wire, err := proto.Marshal(then)
	if err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	return proto.Unmarshal(wire, m)
}

// older returns the CSI messages with the fields that CSI 1.13 has removed.
func older() (*protoregistry.Files, error) {
	file := protodesc.ToFileDescriptorProto(csipb.File_csi_proto)
	field := func(
		name string, number int32, of descriptorpb.FieldDescriptorProto_Type,
	) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number, Type: &of, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	condition := field("volume_condition", 2, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE)
	condition.TypeName = proto.String(".csi.v1.VolumeCondition")
	for _, m := range file.GetMessageType() {
		switch m.GetName() {
		case "NodeGetVolumeStatsResponse":
		case "ControllerGetVolumeResponse", "ListVolumesResponse":
			m = m.GetNestedType()[0] // VolumeStatus
		default:
			continue
		}
		m.Field, m.ReservedRange = append(m.Field, condition), nil
	}
	file.MessageType = append(file.MessageType, &descriptorpb.DescriptorProto{
		Name: proto.String("VolumeCondition"), Field: []*descriptorpb.FieldDescriptorProto{
			field("abnormal", 1, descriptorpb.FieldDescriptorProto_TYPE_BOOL),
			field("message", 2, descriptorpb.FieldDescriptorProto_TYPE_STRING),
		},
	})
	made, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		return nil, fmt.Errorf("make the messages of CSI 1.12: %w", err)
	}
	files := new(protoregistry.Files)
	return files, files.RegisterFile(made)
}
