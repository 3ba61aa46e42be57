import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Asks a question through the pipeline and prints the request that a sender would send.
 *
 * <p>Kafka's Java client has the right partitioner (murmur2 of the key) by default. Needs nothing but
 * kafka-clients and its dependencies: java -cp 'lib/*' Agent.java BOOTSTRAP PREFIX SESSION QUESTION
 */
public final class Agent {
  private Agent() {}

  public static void main(String[] given) throws Exception {
    String bootstrap = given[0];
    String prefix = given[1];
    String session = given[2];
    String question = given[3];
    write(bootstrap, prefix + "agent.turns.v1", session, question);
    read(bootstrap, prefix + "provider.requests.v1", session);
  }

  private static void write(String bootstrap, String topic, String session, String question) throws Exception {
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", bootstrap,
            "enable.idempotence", "true",
            "acks", "all",
            "compression.type", "zstd",
            "max.request.size", 64 * 1024 * 1024,
            "key.serializer", StringSerializer.class,
            "value.serializer", StringSerializer.class);
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      String opened =
          "{\"type\":\"session.opened\",\"model\":\"claude-sonnet-4-5\",\"params\":{\"max_tokens\":1024}}";
      String turn =
          "{\"type\":\"turn.appended\",\"id\":\"%s\",\"message\":{\"role\":\"user\",\"content\":\"%s\"}}"
              .formatted(UUID.randomUUID(), question.replace("\\", "\\\\").replace("\"", "\\\""));
      for (String value : List.of(opened, turn)) {
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, session, value);
        record.headers().add("producer", "java-example/1.0".getBytes(StandardCharsets.UTF_8));
        producer.send(record).get();
      }
    }
  }

  private static void read(String bootstrap, String topic, String session) {
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", bootstrap,
            "group.id", "java-example-" + UUID.randomUUID(),
            "isolation.level", "read_committed",
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false",
            "key.deserializer", StringDeserializer.class,
            "value.deserializer", StringDeserializer.class);
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
      consumer.subscribe(List.of(topic));
      while (true) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
          if (record.key().equals(session)) {
            System.out.println(record.value());
            return;
          }
        }
      }
    }
  }
}
