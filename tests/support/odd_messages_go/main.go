// Sends every odd message that Go's client can make, each between two good messages, into some topics.
//
// Arguments and output are those of OddMessages.java.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math"
	mathrand "math/rand"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	noText     = "\xff\xfe\x80"
	surrogate  = "\xed\xa0\x80"
	uuid       = "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f"
	farS       = 253_402_300_799
	largeBytes = 6_000_000
	timeout    = 20 * time.Second
	oldAvro    = `{"type":"record","name":"Avro","fields":[{"name":"name","type":"string"}]}`
	newAvro    = `{"type":"record","name":"Avro","fields":[{"name":"name","type":"string"},` +
		`{"name":"age","type":"int","default":0}]}`
	otherAvro = `{"type":"record","name":"Avro","fields":[{"name":"age","type":"string"}]}`
)

type place struct {
	topic       string
	deliverAtMs int64
	isTimer     bool
	without     *regexp.Regexp
}

type odd struct {
	name string
	send func(place, string) error
}

type program struct {
	client pulsar.Client
	dueMs  int64
	all    []odd
}

func main() {
	quiet := logrus.New()
	quiet.SetLevel(logrus.FatalLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], Logger: log.NewLoggerWithLogrus(quiet), OperationTimeout: timeout,
	})
	must(err)
	defer client.Close()
	p := &program{client: client, dueMs: number(os.Args[2])}
	p.texts()
	p.times()
	p.payloads()
	p.schemas()
	for at := 3; at < len(os.Args); at += 4 {
		without := regexp.MustCompile("^(?:" + os.Args[at+3] + ")$")
		p.sendAll(place{os.Args[at], number(os.Args[at+1]), os.Args[at+2] == "timer", without})
	}
}

func (p *program) sendAll(to place) {
	producer, err := p.client.CreateProducer(pulsar.ProducerOptions{Topic: to.topic})
	must(err)
	defer producer.Close()
	p.sendGood(producer, to, 0)
	for number, one := range p.all {
		if to.without.MatchString(one.name) {
			continue
		}
		told := ""
		if err := tried(one, to); err != nil {
			told = err.Error()
		}
		on_progress(to, one.name, told)
		p.sendGood(producer, to, number+1)
	}
}

// tried sends an odd message, and turns a panic of the client into an error.
func tried(one odd, to place) (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("panic: %v", found)
		}
	}()
	return one.send(to, one.name)
}

func (p *program) sendGood(producer pulsar.Producer, to place, number int) {
	id := fmt.Sprintf("good-%d", number)
	message := p.prepared(to, id)
	message.Properties["good"] = id
	message.Payload = []byte(id)
	must(sent(producer, message))
	on_progress(to, id, "")
}

// prepared returns a message with the delay and the properties that the place needs.
func (p *program) prepared(to place, id string) *pulsar.ProducerMessage {
	message := &pulsar.ProducerMessage{Properties: map[string]string{}}
	if to.isTimer {
		message.Properties["tw-id"] = id
		message.Properties["tw-timer"] = fmt.Sprintf("1 %d 0 0 %d 1", p.dueMs, time.Now().UnixMilli())
	}
	if to.deliverAtMs != 0 {
		message.DeliverAt = time.UnixMilli(to.deliverAtMs)
	}
	return message
}

func (p *program) started(to place, name string) *pulsar.ProducerMessage {
	message := p.prepared(to, name)
	message.Properties["odd"] = name
	message.Payload = []byte("odd " + name)
	return message
}

// message adds a message that is odd in itself.
func (p *program) message(name string, makeOdd func(*pulsar.ProducerMessage)) {
	p.produced(name, pulsar.ProducerOptions{DisableBatching: true}, makeOdd)
}

// produced adds a message that is odd by its producer.
func (p *program) produced(name string, options pulsar.ProducerOptions, makeOdd func(*pulsar.ProducerMessage)) {
	p.all = append(p.all, odd{name, func(to place, id string) error {
		options.Topic = to.topic
		options.SendTimeout = timeout
		producer, err := p.client.CreateProducer(options)
		if err != nil {
			return err
		}
		defer producer.Close()
		message := p.started(to, id)
		makeOdd(message)
		return sent(producer, message)
	}})
}

func (p *program) batched(name string, options pulsar.ProducerOptions) {
	options.BatchingMaxPublishDelay = time.Second
	p.all = append(p.all, odd{name, func(to place, id string) error {
		options.Topic = to.topic
		producer, err := p.client.CreateProducer(options)
		if err != nil {
			return err
		}
		defer producer.Close()
		failures := make(chan error, 4)
		for at, key := range []string{noText, uuid, noText, ""} {
			message := p.started(to, fmt.Sprintf("%s #%d", id, at))
			message.Key, message.OrderingKey = key, uuid
			producer.SendAsync(context.Background(), message,
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failures <- err })
		}
		if err := producer.Flush(); err != nil {
			return err
		}
		for range 4 {
			if err := <-failures; err != nil {
				return err
			}
		}
		return nil
	}})
}

func (p *program) texts() {
	texts := map[string]string{
		"no UTF-8": noText, "a lone surrogate": surrogate, "a UUID's bytes": uuid, "NUL": "a\x00b",
	}
	for _, kind := range slices.Sorted(maps.Keys(texts)) {
		text := texts[kind]
		p.message("a key: "+kind, func(m *pulsar.ProducerMessage) { m.Key = text })
		p.message("an ordering key: "+kind, func(m *pulsar.ProducerMessage) { m.OrderingKey = text })
		p.message("a property: "+kind, func(m *pulsar.ProducerMessage) { m.Properties["colour"] = text })
		p.message("a property's name: "+kind, func(m *pulsar.ProducerMessage) { m.Properties[text] = "red" })
	}
	p.message("a key of 100 kB", func(m *pulsar.ProducerMessage) { m.Key = strings.Repeat("k", 100_000) })
	p.message("a property without a name", func(m *pulsar.ProducerMessage) { m.Properties[""] = "red" })
	p.message("a property without a value", func(m *pulsar.ProducerMessage) { m.Properties["colour"] = "" })
	p.message("no properties", func(m *pulsar.ProducerMessage) { delete(m.Properties, "odd") })
	p.message("1,000 properties", func(m *pulsar.ProducerMessage) {
		for number := range 1_000 {
			m.Properties[fmt.Sprintf("p%d", number)] = "x"
		}
	})
	p.message("a property of 200 kB", func(m *pulsar.ProducerMessage) {
		m.Properties["colour"] = strings.Repeat("x", 200_000)
	})
	p.produced("a producer whose name is no UTF-8",
		pulsar.ProducerOptions{Name: noText + strconv.FormatInt(p.dueMs, 10), DisableBatching: true}, func(*pulsar.ProducerMessage) {})
	p.produced("a producer with properties that are no UTF-8",
		pulsar.ProducerOptions{Properties: map[string]string{noText: ""}, DisableBatching: true}, func(*pulsar.ProducerMessage) {})
}

func (p *program) times() {
	for _, one := range []struct {
		name string
		at   time.Time
	}{
		{"1970", time.UnixMilli(0)}, {"before 1970", time.UnixMilli(-1)}, {"1 ms after 1970", time.UnixMilli(1)},
		{"the year 2200", time.Unix(7_258_118_400, 0)}, {"the year 9999", time.Unix(farS, 0)},
		{"the end of time", time.Unix(math.MaxInt64, 0)},
	} {
		p.message("event time: "+one.name, func(m *pulsar.ProducerMessage) { m.EventTime = one.at })
		p.message("delivery: "+one.name, func(m *pulsar.ProducerMessage) { m.DeliverAt = one.at })
	}
	p.message("delivery after a negative time", func(m *pulsar.ProducerMessage) { m.DeliverAfter = -time.Hour })
	p.message("delivery after 290 years", func(m *pulsar.ProducerMessage) { m.DeliverAfter = math.MaxInt64 })
	for _, id := range []int64{0, math.MaxInt64, -5} {
		p.message(fmt.Sprintf("sequence id %d", id), func(m *pulsar.ProducerMessage) { m.SequenceID = &id })
	}
	p.message("replicated to a cluster that is not", func(m *pulsar.ProducerMessage) {
		m.ReplicationClusters = []string{"elsewhere"}
	})
	p.message("replicated to a cluster of no UTF-8", func(m *pulsar.ProducerMessage) { m.ReplicationClusters = []string{noText} })
	p.message("replicated nowhere", func(m *pulsar.ProducerMessage) { m.DisableReplication = true })
}

func (p *program) payloads() {
	p.message("an empty payload", func(m *pulsar.ProducerMessage) { m.Payload = []byte{} })
	p.message("no payload", func(m *pulsar.ProducerMessage) { m.Payload = nil })
	p.message("a payload that is no text", func(m *pulsar.ProducerMessage) { m.Payload = []byte(noText) })
	longer := func(more []byte) func(*pulsar.ProducerMessage) {
		return func(m *pulsar.ProducerMessage) { m.Payload = append(append(m.Payload, '\n'), more...) }
	}
	much := []byte(strings.Repeat("odd ", 2_500))
	random := make([]byte, largeBytes)
	mathrand.New(mathrand.NewSource(7)).Read(random)
	kinds := map[string]pulsar.CompressionType{
		"LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		kind := kinds[name]
		options := pulsar.ProducerOptions{CompressionType: kind, DisableBatching: true}
		p.produced("compressed: "+name, options, longer(much))
		p.produced("compressed, and empty: "+name, options, func(m *pulsar.ProducerMessage) { m.Payload = nil })
		p.produced("compressed, and random: "+name, options, longer(random[:10_000]))
		p.batched("a batch, compressed: "+name, pulsar.ProducerOptions{CompressionType: kind})
	}
	chunked := pulsar.ProducerOptions{EnableChunking: true, DisableBatching: true, ChunkMaxMessageSize: 1_000}
	p.produced("chunks of 1,000 bytes", chunked, longer(much))
	chunked.ChunkMaxMessageSize = 0
	p.produced("chunks of 6 MB that do not compress", chunked, longer(random))
	chunked.CompressionType = pulsar.ZSTD
	p.produced("chunks of 6 MB that compress", chunked, longer(make([]byte, largeBytes)))
	p.message("6 MB, and no chunks", longer(random))
	p.message("4.9 MB", longer(random[:4_900_000]))
	options := pulsar.ProducerOptions{DisableBatching: true, Encryption: encryption()}
	p.produced("encrypted", options, longer(much))
	options.CompressionType = pulsar.LZ4
	p.produced("encrypted and compressed", options, longer(much))
	options.CompressionType, options.EnableChunking, options.ChunkMaxMessageSize = pulsar.NoCompression, true, 2_000
	p.produced("encrypted in chunks", options, longer(much))
	p.batched("a batch", pulsar.ProducerOptions{})
	p.batched("a batch by keys", pulsar.ProducerOptions{BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	p.batched("a batch that is encrypted", pulsar.ProducerOptions{Encryption: encryption()})
}

func (p *program) schemas() {
	typed := func(name string, schema pulsar.Schema, value any) {
		p.produced("schema "+name, pulsar.ProducerOptions{Schema: schema, DisableBatching: true},
			func(m *pulsar.ProducerMessage) { m.Payload, m.Value = nil, value })
	}
	person := struct {
		Name string `json:"name" avro:"name"`
		Age  int    `json:"age" avro:"age"`
	}{"Zoe", 7}
	typed("STRING", pulsar.NewStringSchema(nil), "odd schema STRING")
	typed("STRING of no UTF-8", pulsar.NewStringSchema(nil), noText)
	typed("INT64", pulsar.NewInt64Schema(nil), int64(7))
	typed("DOUBLE", pulsar.NewDoubleSchema(nil), math.NaN())
	typed("BYTES", pulsar.NewBytesSchema(nil), []byte(noText))
	typed("JSON", pulsar.NewJSONSchema(oldAvro, nil), person)
	typed("JSON, evolved", pulsar.NewJSONSchema(newAvro, nil), person)
	typed("AVRO", pulsar.NewAvroSchema(oldAvro, nil), person)
	typed("AVRO, evolved", pulsar.NewAvroSchema(newAvro, nil), person)
	typed("AVRO, incompatible", pulsar.NewAvroSchema(otherAvro, nil), map[string]any{"age": "seven"})
	typed("AVRO, no value", pulsar.NewAvroSchema(oldAvro, nil), nil)
	typed("PROTOBUF_NATIVE", pulsar.NewProtoNativeSchemaWithMessage(&timestamppb.Timestamp{}, nil), timestamppb.Now())
	p.produced("schema of the message alone", pulsar.ProducerOptions{DisableBatching: true},
		func(m *pulsar.ProducerMessage) {
			m.Payload, m.Value, m.Schema = nil, person, pulsar.NewJSONSchema(newAvro, nil)
		})
}

type publicKey []byte

func (key publicKey) PublicKey(name string, metadata map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, key, metadata), nil
}

func (key publicKey) PrivateKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, fmt.Errorf("nobody has it")
}

func encryption() *pulsar.ProducerEncryptionInfo {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(err)
	reader := publicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	return &pulsar.ProducerEncryptionInfo{KeyReader: reader, Keys: []string{"nobody-has-it"}}
}

func sent(producer pulsar.Producer, message *pulsar.ProducerMessage) error {
	within, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_, err := producer.Send(within, message)
	return err
}

func number(text string) int64 {
	found, err := strconv.ParseInt(text, 10, 64)
	must(err)
	return found
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func on_progress(to place, name, err string) {
	if len(err) > 200 {
		err = err[:200]
	}
	line, failed := json.Marshal(map[string]any{
		"topic": to.topic, "name": name, "error": err, "at_ms": time.Now().UnixMilli(),
	})
	must(failed)
	fmt.Println(string(line))
}
